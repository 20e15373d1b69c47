"""Attention over a short window of the past, rotary positions included: one kernel between two projections."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_batch.engine.kernels.backend import jit, tl, triton, uses_triton

_BLOCK = 64  # queries of a program, and keys of a step
_MIN_HEAD_DIM = 32  # the tensor cores take no fewer than 16 products, and rotation splits a head in two


def window_attention(qkv: Tensor, cos: Tensor, sin: Tensor, window: int) -> Tensor:
    """Each position attends to itself and the `window - 1` before it.

    Args:
        qkv: [B, T, 3, heads, head_dim].
        cos, sin: float32 [T, head_dim / 2], the angles of each position.

    Returns:
        [B, T, heads * head_dim], scaled by head_dim**-0.5 inside.
    """
    batch, length, _, heads, head_dim = qkv.shape
    if not uses_triton(qkv) or head_dim < _MIN_HEAD_DIM:
        return _twin(qkv, cos, sin, window)
    out = torch.empty(batch, length, heads * head_dim, dtype=qkv.dtype, device=qkv.device)
    _window_kernel[(triton.cdiv(length, _BLOCK), batch * heads)](
        qkv, cos, sin, out, length, head_dim**-0.5,
        HEADS=heads, HALF=head_dim // 2, WINDOW=window, BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
    return out


def _twin(qkv: Tensor, cos: Tensor, sin: Tensor, window: int) -> Tensor:
    q, k, v = qkv.transpose(1, 3).unbind(2)  # [B, heads, T, head_dim]
    age = torch.arange(qkv.shape[1], device=qkv.device)
    age = age[:, None] - age
    mixed = F.scaled_dot_product_attention(
        _rotate(q, cos, sin), _rotate(k, cos, sin), v, attn_mask=(age >= 0) & (age < window)
    )
    return mixed.transpose(1, 2).flatten(2)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


@jit
def _load_rotated(ptr, rows, inside, cos_ptr, sin_ptr, row_stride, HALF: tl.constexpr):
    """Both halves of the heads at `ptr` for some rows, rotated by the angle of each."""
    dims = tl.arange(0, HALF)[None, :]
    at = rows[:, None] * row_stride + dims
    cos = tl.load(cos_ptr + rows[:, None] * HALF + dims, mask=inside, other=0.0)
    sin = tl.load(sin_ptr + rows[:, None] * HALF + dims, mask=inside, other=0.0)
    first = tl.load(ptr + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(ptr + at + HALF, mask=inside, other=0.0).to(tl.float32)
    dtype = ptr.dtype.element_ty
    return (first * cos - second * sin).to(dtype), (second * cos + first * sin).to(dtype)


@jit(do_not_specialize=["length"])
def _window_kernel(
    qkv_ptr, cos_ptr, sin_ptr, out_ptr, length, scale,
    HEADS: tl.constexpr, HALF: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    width: tl.constexpr = HEADS * 2 * HALF
    first_row = tl.program_id(0) * BLOCK
    batch = (tl.program_id(1) // HEADS).to(tl.int64)
    head = tl.program_id(1) % HEADS
    rows = first_row + tl.arange(0, BLOCK)
    dims = tl.arange(0, 2 * HALF)[None, :]
    q_ptr = qkv_ptr + batch * length * 3 * width + head * 2 * HALF
    q1, q2 = _load_rotated(q_ptr, rows, (rows < length)[:, None], cos_ptr, sin_ptr, 3 * width, HALF)

    peak = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    acc = tl.zeros((BLOCK, 2 * HALF), tl.float32)
    # A row's own block comes first, so that every row has seen a key before a block may hide all from it.
    for back in range((WINDOW + BLOCK - 2) // BLOCK + 1):
        keys = rows - back * BLOCK
        inside = ((keys >= 0) & (keys < length))[:, None]
        k1, k2 = _load_rotated(q_ptr + width, keys, inside, cos_ptr, sin_ptr, 3 * width, HALF)
        v = tl.load(q_ptr + 2 * width + keys[:, None] * 3 * width + dims, mask=inside, other=0.0)
        age = rows[:, None] - keys[None, :]
        seen = (age >= 0) & (age < WINDOW) & (keys >= 0)[None, :]
        scores = tl.dot(q2, tl.trans(k2), tl.dot(q1, tl.trans(k1))) * scale
        scores = tl.where(seen, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        weights = tl.exp(scores - new_peak[:, None])
        fade = tl.exp(peak - new_peak)
        total = total * fade + tl.sum(weights, axis=1)
        acc = tl.dot(weights.to(v.dtype), v, acc * fade[:, None])
        peak = new_peak
    out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    at = batch * length * width + rows[:, None] * width + head * 2 * HALF + dims
    tl.store(out_ptr + at, out, mask=(rows < length)[:, None])
