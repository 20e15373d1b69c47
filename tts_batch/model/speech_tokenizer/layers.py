"""The layers of the codec: convolutions that never look ahead, and its two transformers."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_batch.model.config import CodecDecoderConfig, CodecEncoderConfig
from tts_batch.model.layers import Attend, Attention, rotary
from tts_batch.model.padded import replicate_last, zero_padding


class CausalConv1d(nn.Module):
    """Convolution padded on the left to be causal and on the right to whole strides.

    [B, in, T] -> [B, out, ceil(T / stride)]. With `lengths` [B] rows may be shorter than T; each has the output that it
    has alone, in its first `num_steps(lengths)` steps.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
        pad_mode: str = "constant",
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(
            in_channels, out_channels, kernel_size, stride=stride, dilation=dilation, groups=groups, bias=bias
        )
        self.stride = stride
        self.left = (kernel_size - 1) * dilation + 1 - stride
        self.pad_mode = pad_mode

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        # Only the last, partial stride reaches past a row's end.
        if lengths is not None and self.stride > 1:
            x = zero_padding(x, lengths) if self.pad_mode == "constant" else replicate_last(x, lengths)
        right = -x.shape[-1] % self.stride
        return self.conv(F.pad(x, (self.left, right), mode=self.pad_mode))

    def num_steps(self, lengths: Tensor) -> Tensor:
        """The number of output steps for `lengths` input steps."""
        return -(-lengths // self.stride)


class CausalConvTranspose1d(nn.Module):
    """Transposed convolution without its tail, which would need later input: [B, in, T] -> [B, out, T * stride]."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, *, stride: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(in_channels, out_channels, kernel_size, stride=stride)
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)[..., : x.shape[-1] * self.stride]


class Transformer(nn.Module):
    """Causal transformer over steps, [B, T, width] -> same; encoder and decoder differ in norms, MLP and window.

    With a `window` a step sees itself and the `window - 1` steps before it, otherwise the whole past.
    """

    def __init__(
        self,
        config: CodecEncoderConfig | CodecDecoderConfig,
        mlp: Callable[[], nn.Module],
        norm: Callable[[], nn.Module],
        window: int | None = None,
    ) -> None:
        super().__init__()
        self.config, self.window = config, window
        self.layers = nn.ModuleList(
            TransformerLayer(config, i, mlp(), (norm(), norm())) for i in range(config.num_hidden_layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)
        cos, sin = rotary(positions, self.config.head_dim, self.config.rope_theta, x.dtype)
        mask = None
        if self.window is not None:
            age = positions[:, None] - positions
            mask = (age >= 0) & (age < self.window)

        def attend(layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # from [B, T, heads, head_dim]
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None).transpose(1, 2)

        for layer in self.layers:
            x = layer(x, cos, sin, attend)
        return x


class TransformerLayer(nn.Module):
    """Pre-norm attention and MLP, each branch scaled by channel before it is added: [B, T, width] -> same."""

    def __init__(
        self,
        config: CodecEncoderConfig | CodecDecoderConfig,
        layer_idx: int,
        mlp: nn.Module,
        norms: tuple[nn.Module, nn.Module],
    ) -> None:
        super().__init__()
        self.self_attn = Attention(config, layer_idx)
        self.mlp = mlp
        self.input_layernorm, self.post_attention_layernorm = norms
        self.self_attn_layer_scale = LayerScale(config.hidden_size)
        self.mlp_layer_scale = LayerScale(config.hidden_size)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        x = x + self.self_attn_layer_scale(self.self_attn(self.input_layernorm(x), cos, sin, attend))
        return x + self.mlp_layer_scale(self.mlp(self.post_attention_layernorm(x)))


class LayerScale(nn.Module):
    """One factor for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x
