"""The head of a ConvNeXt block: a depthwise causal convolution and the layer norm after it, in one pass."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_batch.engine.kernels.backend import jit, next_power_of_2, tl, triton, uses_triton

_ROWS = 4


def depthwise_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """[B, T, C] -> [B, T, C]: weight float32 [taps, C], bias float32 [C]; the norm has no weight of its own."""
    batch, length, width = x.shape
    taps = weight.shape[0]
    if not uses_triton(x):
        padded = F.pad(x.float(), (0, 0, taps - 1, 0))
        y = bias + sum(padded[:, k : k + length] * weight[k] for k in range(taps))
        return F.layer_norm(y, (width,), eps=eps).to(x.dtype)
    out = torch.empty_like(x)
    _depthwise_norm_kernel[(triton.cdiv(length, _ROWS), batch)](
        x, weight, bias, out, length, width, eps, TAPS=taps, ROWS=_ROWS, BLOCK=next_power_of_2(width), num_warps=4
    )
    return out


@jit(do_not_specialize=["length"])
def _depthwise_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, length, width, eps,
    TAPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    cols = tl.arange(0, BLOCK)[None, :]
    used = cols < width
    start = tl.program_id(1).to(tl.int64) * length * width
    y = tl.zeros((ROWS, BLOCK), tl.float32) + tl.load(bias_ptr + cols, mask=used, other=0.0)
    for tap in tl.static_range(TAPS):
        source = rows - (TAPS - 1 - tap)
        inside = used & (source >= 0) & (source < length)
        x = tl.load(x_ptr + start + source * width + cols, mask=inside, other=0.0).to(tl.float32)
        y += x * tl.load(weight_ptr + tap * width + cols, mask=used, other=0.0)
    mean = tl.sum(y, axis=1, keep_dims=True) / width
    centred = tl.where(used, y - mean, 0.0)
    variance = tl.sum(centred * centred, axis=1, keep_dims=True) / width
    normed = (centred * tl.rsqrt(variance + eps)).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + start + rows * width + cols, normed, mask=used & (rows < length))
