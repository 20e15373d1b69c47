"""SwiGLU's elementwise part over the packed gate-and-up product."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_batch.engine.kernels.backend import jit, next_power_of_2, tl, triton, uses_triton


def silu_mul(gate_up: Tensor) -> Tensor:
    """[N, 2 I], the gate first -> silu(gate) * up [N, I]; the silu is rounded to the dtype before the product."""
    gate, up = gate_up.chunk(2, dim=-1)
    if not uses_triton(gate_up):
        return F.silu(gate) * up
    rows, width = gate.shape
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    block = min(next_power_of_2(width), 2048)
    _silu_mul_kernel[(rows, triton.cdiv(width, block))](gate_up, out, width, BLOCK=block, num_warps=4)
    return out


@jit
def _silu_mul_kernel(gate_up_ptr, out_ptr, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < width
    dtype = out_ptr.dtype.element_ty
    gate = tl.load(gate_up_ptr + row * 2 * width + cols, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * width + width + cols, mask=mask, other=0.0).to(tl.float32)
    silu = (gate / (1.0 + tl.exp(-gate))).to(dtype)
    tl.store(out_ptr + row * width + cols, (silu.to(tl.float32) * up).to(dtype), mask=mask)
