"""From the packed q-k-v product to rotated queries and filled KV pages: head norms, rotation, cache write in one."""

from __future__ import annotations

import torch
from torch import Tensor

from tts_batch.engine.kernels.backend import jit, next_power_of_2, tl, uses_triton
from tts_batch.engine.kernels.norm import rms_norm


def rotate_and_cache(
    qkv: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slot_mapping: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
) -> Tensor:
    """Norm and rotate q and k, store k and v in their pages, return q.

    Args:
        qkv: [N, (Hq + 2 Hkv) D], heads of q, then k, then v.
        q_norm, k_norm: [D].
        cos, sin: [max_positions, D / 2], in qkv's dtype.
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
        cos, sin = cos[positions.long()][:, None], sin[positions.long()][:, None]
        q, k = (_rotate(rms_norm(x, w, eps), cos, sin) for x, w in ((q, q_norm), (k, k_norm)))
        stored = slot_mapping >= 0
        page, offset = slot_mapping[stored].long() // page_size, slot_mapping[stored].long() % page_size
        k_cache[page, :, offset] = k[stored]
        v_cache[page, :, offset] = v[stored]
        return q
    q = torch.empty(num_tokens, num_heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    _rotate_and_cache_kernel[(num_tokens,)](
        qkv, q_norm, k_norm, eps, cos, sin, positions, slot_mapping, k_cache, v_cache, q,
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, PAGE_SIZE=page_size, HALF=head_dim // 2,
        HEADS=next_power_of_2(num_heads + 2 * num_kv_heads), num_warps=4,
    )  # fmt: skip
    return q


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


@jit
def _rotate_and_cache_kernel(
    qkv_ptr, q_norm_ptr, k_norm_ptr, eps, cos_ptr, sin_ptr, positions_ptr, slot_mapping_ptr, k_ptr, v_ptr, q_ptr,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, PAGE_SIZE: tl.constexpr, HALF: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    dtype = qkv_ptr.dtype.element_ty
    head_dim: tl.constexpr = 2 * HALF
    all_heads: tl.constexpr = NUM_HEADS + 2 * NUM_KV_HEADS
    head = tl.arange(0, HEADS)[:, None]
    dim = tl.arange(0, HALF)[None, :]
    is_q = head < NUM_HEADS
    is_k = (head >= NUM_HEADS) & (head < NUM_HEADS + NUM_KV_HEADS)
    is_v = (head >= NUM_HEADS + NUM_KV_HEADS) & (head < all_heads)

    source = qkv_ptr + token * all_heads * head_dim + head * head_dim + dim
    raw1 = tl.load(source, mask=head < all_heads, other=0.0)
    raw2 = tl.load(source + HALF, mask=head < all_heads, other=0.0)
    x1 = raw1.to(tl.float32)
    x2 = raw2.to(tl.float32)
    rstd = tl.rsqrt((tl.sum(x1 * x1, axis=1) + tl.sum(x2 * x2, axis=1)) / head_dim + eps)[:, None]
    w1 = tl.where(is_q, tl.load(q_norm_ptr + dim), tl.load(k_norm_ptr + dim)).to(tl.float32)
    w2 = tl.where(is_q, tl.load(q_norm_ptr + HALF + dim), tl.load(k_norm_ptr + HALF + dim)).to(tl.float32)
    # Each product is rounded to the model dtype, as the network rounds it.
    n1 = ((x1 * rstd).to(dtype).to(tl.float32) * w1).to(dtype).to(tl.float32)
    n2 = ((x2 * rstd).to(dtype).to(tl.float32) * w2).to(dtype).to(tl.float32)
    position = tl.load(positions_ptr + token).to(tl.int64)
    cos = tl.load(cos_ptr + position * HALF + dim).to(tl.float32)
    sin = tl.load(sin_ptr + position * HALF + dim).to(tl.float32)
    r1 = ((n1 * cos).to(dtype).to(tl.float32) - (n2 * sin).to(dtype).to(tl.float32)).to(dtype)
    r2 = ((n2 * cos).to(dtype).to(tl.float32) + (n1 * sin).to(dtype).to(tl.float32)).to(dtype)

    q_out = q_ptr + (token * NUM_HEADS + head) * head_dim + dim
    tl.store(q_out, r1, mask=is_q)
    tl.store(q_out + HALF, r2, mask=is_q)
    slot = tl.load(slot_mapping_ptr + token).to(tl.int64)
    page = slot // PAGE_SIZE
    offset = slot % PAGE_SIZE
    stored = slot >= 0
    k_out = k_ptr + ((page * NUM_KV_HEADS + head - NUM_HEADS) * PAGE_SIZE + offset) * head_dim + dim
    tl.store(k_out, r1, mask=is_k & stored)
    tl.store(k_out + HALF, r2, mask=is_k & stored)
    v_out = v_ptr + ((page * NUM_KV_HEADS + head - NUM_HEADS - NUM_KV_HEADS) * PAGE_SIZE + offset) * head_dim + dim
    tl.store(v_out, raw1, mask=is_v & stored)
    tl.store(v_out + HALF, raw2, mask=is_v & stored)
