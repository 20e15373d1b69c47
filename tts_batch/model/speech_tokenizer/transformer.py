"""The transformer layer of the codec's encoder and decoder, which differ in norms, MLP and mask."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_batch.model.layers import rotate


class TransformerLayer(nn.Module):
    """Pre-norm attention and MLP, each branch scaled by channel before it is added: [B, T, width] -> same."""

    def __init__(self, width: int, *, heads: int, head_dim: int, mlp: nn.Module, norms: tuple[nn.Module, nn.Module]):
        super().__init__()
        self.self_attn = Attention(width, heads, head_dim)
        self.mlp = mlp
        self.input_layernorm, self.post_attention_layernorm = norms
        self.self_attn_layer_scale = LayerScale(width)
        self.mlp_layer_scale = LayerScale(width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None = None) -> Tensor:
        """`cos` and `sin` are [T, head_dim]; `mask` is bool [T, T], True where row sees column. None: causal."""
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), cos, sin, mask))
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))


class Attention(nn.Module):
    """Multi-head self-attention with rotary positions."""

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = nn.Linear(width, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(width, heads * head_dim, bias=False)
        self.v_proj = nn.Linear(width, heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = (proj(x).unflatten(-1, (-1, self.head_dim)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (t.transpose(1, 2) for t in (rotate(q, cos, sin), rotate(k, cos, sin), v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class LayerScale(nn.Module):
    """One factor for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x
