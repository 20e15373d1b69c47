"""RMS norm with the residual addition before it: one pass over the stream instead of three."""

from __future__ import annotations

import torch
from torch import Tensor

from tts_batch.engine.kernels.backend import jit, next_power_of_2, tl, uses_triton


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[N, H] -> [N, H]: float32 statistics, cast to x's dtype, then the weight."""
    if not uses_triton(x):
        x32 = x.float()
        return weight * (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
    out = torch.empty_like(x)
    _launch(x, x, weight, out, eps, has_residual=False)
    return out


def add_rms_norm_(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual += x, in place and rounded to its dtype; return its norm. All [N, H], contiguous."""
    if not uses_triton(x):
        residual += x
        return rms_norm(residual, weight, eps)
    out = torch.empty_like(x)
    _launch(x, residual, weight, out, eps, has_residual=True)
    return out


def _launch(x: Tensor, residual: Tensor, weight: Tensor, out: Tensor, eps: float, has_residual: bool) -> None:
    rows, hidden = x.shape
    block = next_power_of_2(hidden)
    _rms_norm_kernel[(rows,)](
        x,
        residual,
        weight,
        out,
        hidden,
        eps,
        HAS_RESIDUAL=has_residual,
        BLOCK=block,
        num_warps=4 if block <= 1024 else 8,
    )


@jit
def _rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, hidden, eps, HAS_RESIDUAL: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < hidden
    dtype = x_ptr.dtype.element_ty
    x = tl.load(x_ptr + row * hidden + cols, mask=mask, other=0.0)
    if HAS_RESIDUAL:
        residual = tl.load(residual_ptr + row * hidden + cols, mask=mask, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(dtype)
        tl.store(residual_ptr + row * hidden + cols, x, mask=mask)
    x32 = x.to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x32 * x32, axis=0) / hidden + eps)
    normed = (x32 * rstd).to(dtype)
    weight = tl.load(weight_ptr + cols, mask=mask, other=0.0)
    # float32 product rounded once: what a product in the model dtype gives.
    tl.store(out_ptr + row * hidden + cols, (normed.to(tl.float32) * weight.to(tl.float32)).to(dtype), mask=mask)
