"""From the packed q-k-v product to rotated queries and filled KV pages: head norms, rotation, cache write in one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tts_batch.engine.kernels.backend import jit, next_power_of_2, tl, uses_triton
from tts_batch.engine.kernels.norm import rms_norm


class Rotation(NamedTuple):
    """What a layer does to its heads of q and k before they meet."""

    q_norm: Tensor  # [D]
    k_norm: Tensor  # [D]
    eps: float
    cos: Tensor  # [max_positions, D / 2], in the model's dtype
    sin: Tensor


def rotate_and_cache(
    qkv: Tensor, rotation: Rotation, positions: Tensor, slot_mapping: Tensor, k_cache: Tensor, v_cache: Tensor
) -> Tensor:
    """Norm and rotate q and k, store k and v in their pages, return q.

    Args:
        qkv: [N, (Hq + 2 Hkv) D], heads of q, then k, then v.
        positions: int32 [N], each token's place in its sequence.
        slot_mapping: int32 [N], page * page_size + offset of each token; negative: the token is not stored.
        k_cache, v_cache: [num_pages, Hkv, page_size, D].

    Returns:
        [N, Hq, D].
    """
    num_tokens = qkv.shape[0]
    _, num_kv_heads, page_size, head_dim = k_cache.shape
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    if not uses_triton(qkv):
        heads = qkv.view(num_tokens, -1, head_dim)
        q, k, v = heads.split([num_heads, num_kv_heads, num_kv_heads], dim=1)
        cos, sin = (table[positions.long()][:, None] for table in (rotation.cos, rotation.sin))
        q, k = (
            _rotate(rms_norm(x, weight, rotation.eps), cos, sin)
            for x, weight in ((q, rotation.q_norm), (k, rotation.k_norm))
        )
        stored = slot_mapping >= 0
        page, offset = slot_mapping[stored].long() // page_size, slot_mapping[stored].long() % page_size
        k_cache[page, :, offset] = k[stored]
        v_cache[page, :, offset] = v[stored]
        return q
    q = torch.empty(num_tokens, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    _rotate_and_cache_kernel[(num_tokens,)](
        qkv, *rotation, positions, slot_mapping, k_cache, v_cache, q,
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, PAGE_SIZE=page_size, HEAD_DIM=head_dim,
        HEADS=next_power_of_2(num_heads + 2 * num_kv_heads), num_warps=4,
    )  # fmt: skip
    return q


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@jit
def load_heads(
    x_ptr, head, q_norm_ptr, k_norm_ptr, eps, cos_ptr, sin_ptr, position,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Some heads [M, 1] of the token at x_ptr, of q and k normed and rotated, of v as they are: [M, HEAD_DIM]."""
    dtype = x_ptr.dtype.element_ty
    half: tl.constexpr = HEAD_DIM // 2
    mask = head < NUM_HEADS + 2 * NUM_KV_HEADS
    is_q = head < NUM_HEADS
    dim = head * 0 + tl.arange(0, HEAD_DIM)[None, :]  # as large as the tile, so that all of it has one layout
    partner = (dim + half) % HEAD_DIM  # a dimension turns with the one half a head away
    raw = tl.load(x_ptr + head * HEAD_DIM + dim, mask=mask, other=0.0)
    x = raw.to(tl.float32)
    y = tl.load(x_ptr + head * HEAD_DIM + partner, mask=mask, other=0.0).to(tl.float32)
    x_weight = tl.where(is_q, tl.load(q_norm_ptr + dim), tl.load(k_norm_ptr + dim)).to(tl.float32)
    y_weight = tl.where(is_q, tl.load(q_norm_ptr + partner), tl.load(k_norm_ptr + partner)).to(tl.float32)
    cos = tl.load(cos_ptr + position * half + dim % half).to(tl.float32)
    sin = tl.load(sin_ptr + position * half + dim % half).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / HEAD_DIM + eps)
    # Each product is rounded to the model dtype, as the network rounds it.
    x = ((x * rstd).to(dtype).to(tl.float32) * x_weight).to(dtype).to(tl.float32)
    y = ((y * rstd).to(dtype).to(tl.float32) * y_weight).to(dtype).to(tl.float32)
    turned = (y * sin).to(dtype).to(tl.float32)
    rotated = ((x * cos).to(dtype).to(tl.float32) + tl.where(dim < half, -turned, turned)).to(dtype)
    return tl.where(head < NUM_HEADS + NUM_KV_HEADS, rotated, raw)


@jit
def members_of(kv_head, member, NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr):
    """Which heads of the packed product belong to a KV head: its queries, then its key, then its value; none beyond."""
    group: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    of_kv = NUM_HEADS + kv_head + (member - group) * NUM_KV_HEADS
    return tl.where(member < group, kv_head * group + member, of_kv)


@jit
def pick(tile, member, wanted):
    """One row [1, ...] of a float32 tile, whose rows are numbered by member [M, 1]."""
    return tl.sum(tl.where(member == wanted, tile, 0.0), axis=0, keep_dims=True)


@jit
def _rotate_and_cache_kernel(
    qkv_ptr, q_norm_ptr, k_norm_ptr, eps, cos_ptr, sin_ptr, positions_ptr, slot_mapping_ptr, k_ptr, v_ptr, q_ptr,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, PAGE_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    all_heads: tl.constexpr = NUM_HEADS + 2 * NUM_KV_HEADS
    head = tl.arange(0, HEADS)[:, None]
    dim = tl.arange(0, HEAD_DIM)[None, :]
    heads = load_heads(
        qkv_ptr + token * all_heads * HEAD_DIM, head, q_norm_ptr, k_norm_ptr, eps, cos_ptr, sin_ptr,
        tl.load(positions_ptr + token), NUM_HEADS, NUM_KV_HEADS, HEAD_DIM,
    )  # fmt: skip
    tl.store(q_ptr + (token * NUM_HEADS + head) * HEAD_DIM + dim, heads, mask=head < NUM_HEADS)
    slot = tl.load(slot_mapping_ptr + token).to(tl.int64)
    kv_head = (head - NUM_HEADS) % NUM_KV_HEADS
    at = ((slot // PAGE_SIZE * NUM_KV_HEADS + kv_head) * PAGE_SIZE + slot % PAGE_SIZE) * HEAD_DIM + dim
    is_k = (head >= NUM_HEADS) & (head < NUM_HEADS + NUM_KV_HEADS)
    is_v = (head >= NUM_HEADS + NUM_KV_HEADS) & (head < all_heads)
    tl.store(k_ptr + at, heads, mask=is_k & (slot >= 0))
    tl.store(v_ptr + at, heads, mask=is_v & (slot >= 0))
