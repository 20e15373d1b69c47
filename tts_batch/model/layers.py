"""Decoder layers of the talker and the code predictor: token-major, with attention supplied by the caller."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_batch.model.config import CodecEncoderConfig, StackConfig

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""attend(layer_idx, q [N, Hq, D], k [N, Hkv, D], v [N, Hkv, D]) -> [N, Hq, D].

q and k are normalised and rotated. The callee stores k and v where it keeps its cache and attends with scale
D**-0.5; only it knows which of the N tokens belong to which sequence.
"""


class RMSNorm(nn.Module):
    """Root mean square norm over the last axis: float32 statistics, cast to the input's dtype, then the weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x32 = x.float()
        x32 = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * x32.to(x.dtype)


def rotary(positions: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cos and sin [N, head_dim] of integer positions [N]: angles in float32, cast to `dtype`."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    angles = positions.float()[:, None] * (1.0 / theta**exponents)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [..., N, heads, D] by cos and sin [N, D]; dimension i pairs with i + D/2."""
    first, second = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]


class Attention(nn.Module):
    """Grouped-query projections of tokens [..., H], with a norm per head of q and k before rotation, if any."""

    def __init__(
        self, config: StackConfig | CodecEncoderConfig, layer_idx: int, norm: Callable[[], nn.Module] = nn.Identity
    ) -> None:
        super().__init__()
        hidden, head_dim = config.hidden_size, config.head_dim
        self.layer_idx = layer_idx
        self.head_dim = head_dim
        self.q_proj = nn.Linear(hidden, config.num_attention_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, config.num_key_value_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, config.num_key_value_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * head_dim, hidden, bias=False)
        self.q_norm, self.k_norm = norm(), norm()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        q, k, v = (proj(x).unflatten(-1, (-1, self.head_dim)) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q = rotate(self.q_norm(q), cos, sin)
        k = rotate(self.k_norm(k), cos, sin)
        return self.o_proj(attend(self.layer_idx, q, k, v).flatten(-2))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """x += attention(norm(x)); x += mlp(norm(x))."""

    def __init__(self, config: StackConfig, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer_idx, partial(RMSNorm, config.head_dim, config.rms_norm_eps))
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, attend)
        return x + self.mlp(self.post_attention_layernorm(x))


class DecoderStack(nn.Module):
    """The layers and the final norm; the talker and the code predictor add their embedding tables to it."""

    codec_embedding: Any
    text_embedding: Any

    def __init__(self, config: StackConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(DecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin [N, head_dim] of positions [N], in the stack's dtype."""
        return rotary(positions, self.config.head_dim, self.config.rope_theta, self.norm.weight.dtype)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """Map embeddings x [N, H] of any N tokens to hidden states [N, H] after the final norm."""
        for layer in self.layers:
            x = layer(x, cos, sin, attend)
        return self.norm(x)
