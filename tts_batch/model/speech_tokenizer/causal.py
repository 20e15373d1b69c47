"""Convolutions that never look ahead: output t depends on nothing later than input t."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

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
