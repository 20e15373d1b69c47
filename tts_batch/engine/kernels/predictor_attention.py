"""Attention of the code predictor, whose rows hold a frame's few tokens: all keys of a row and head fit in one tile."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_batch.engine.kernels.backend import jit, launches_early, next_power_of_2, tl, uses_triton
from tts_batch.engine.kernels.rotary_cache import Rotation, load_heads, members_of, pick, rotate_and_cache

LAUNCH = {"num_warps": 1}  # benchmarks/kernels/bench_attention.py measures others


def predictor_attention(qkv: Tensor, rotation: Rotation, k_cache: Tensor, v_cache: Tensor, num_stored: int) -> Tensor:
    """The next tokens of all rows, from their packed q-k-v product to what they attend to; k and v join the cache.

    Args:
        qkv: [N, (Hq + 2 Hkv) D], heads of q, then k, then v. One token a row; or two, row after row, while the cache
            is empty.
        k_cache, v_cache: [rows, Hkv, max_positions, D].
        num_stored: how many tokens of every row are in the cache.

    Returns:
        [N, Hq D], scaled by D**-0.5 inside.
    """
    num_tokens = qkv.shape[0]
    num_rows, num_kv_heads, max_positions, head_dim = k_cache.shape
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    num_new = num_tokens // num_rows
    if not uses_triton(qkv):
        token = torch.arange(num_tokens, dtype=torch.int32, device=qkv.device)
        positions = num_stored + token % num_new
        q = rotate_and_cache(
            qkv, rotation, positions, token // num_new * max_positions + positions, k_cache, v_cache
        ).unflatten(0, (num_rows, num_new))
        k, v = (cache[:, :, : num_stored + num_new] for cache in (k_cache, v_cache))
        mask = torch.ones(num_new, num_stored + num_new, dtype=torch.bool, device=qkv.device).tril(num_stored)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=mask, enable_gqa=True)
        return out.transpose(1, 2).reshape(num_tokens, -1)
    out = torch.empty(num_tokens, num_heads * head_dim, dtype=qkv.dtype, device=qkv.device)
    _predictor_kernel[(num_tokens, num_kv_heads)](
        qkv, *rotation, k_cache, v_cache, out, num_stored, head_dim**-0.5,
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, MEMBERS=next_power_of_2(num_heads // num_kv_heads + 2),
        NEW=num_new, TOKENS=next_power_of_2(max(1, num_stored)), MAX_POSITIONS=max_positions, HEAD_DIM=head_dim,
        EARLY=launches_early(qkv.device), **LAUNCH,
    )  # fmt: skip
    return out


@jit(do_not_specialize=["num_stored"])
def _predictor_kernel(
    qkv_ptr, q_norm_ptr, k_norm_ptr, eps, cos_ptr, sin_ptr, k_ptr, v_ptr, out_ptr, num_stored, scale,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, MEMBERS: tl.constexpr, NEW: tl.constexpr,
    TOKENS: tl.constexpr, MAX_POSITIONS: tl.constexpr, HEAD_DIM: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()  # a product of small_batch.py may fetch its weights meanwhile
    token = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    group: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    width: tl.constexpr = (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM
    dim = tl.arange(0, HEAD_DIM)[None, :]
    member = tl.arange(0, MEMBERS)[:, None]
    head = members_of(kv_head, member, NUM_HEADS, NUM_KV_HEADS)
    cache = (token // NEW * NUM_KV_HEADS + kv_head) * MAX_POSITIONS * HEAD_DIM + dim

    # keys and values [TOKENS, D]: what the row has before this token.
    if NEW == 1:
        earlier = tl.arange(0, TOKENS)[:, None]
        visible = earlier < num_stored
        keys = tl.load(k_ptr + cache + earlier * HEAD_DIM, mask=visible, other=0.0).to(tl.float32)
        values = tl.load(v_ptr + cache + earlier * HEAD_DIM, mask=visible, other=0.0).to(tl.float32)
    else:
        # Another program stores the first of two tokens: its key is computed here too, rather than waited for.
        visible = tl.full([1, 1], 1, tl.int64) == token % NEW
        first = load_heads(
            qkv_ptr + token // NEW * NEW * width, head, q_norm_ptr, k_norm_ptr, eps, cos_ptr, sin_ptr, 0,
            NUM_HEADS, NUM_KV_HEADS, HEAD_DIM,
        ).to(tl.float32)  # fmt: skip
        keys, values = pick(first, member, group), pick(first, member, group + 1)

    position = num_stored + token % NEW
    heads = load_heads(
        qkv_ptr + token * width, head, q_norm_ptr, k_norm_ptr, eps, cos_ptr, sin_ptr, position,
        NUM_HEADS, NUM_KV_HEADS, HEAD_DIM,
    )  # fmt: skip
    own = cache + (position + member * 0) * HEAD_DIM
    tl.store(k_ptr + own, heads, mask=member == group)
    tl.store(v_ptr + own, heads, mask=member == group + 1)

    # So few keys are no work for tensor cores, which want sixteen queries a program: here are `group` of them.
    heads = heads.to(tl.float32)
    own_scores = tl.sum(heads * pick(heads, member, group), axis=1, keep_dims=True) * scale
    own_value = pick(heads, member, group + 1)
    out = tl.zeros([MEMBERS, HEAD_DIM], tl.float32)
    for i in tl.static_range(group):
        scores = tl.sum(keys * pick(heads, member, i), axis=1, keep_dims=True) * scale
        scores = tl.where(visible, scores, float("-inf"))
        own_score = pick(own_scores, member, i)
        top = tl.maximum(own_score, tl.max(scores, axis=0, keep_dims=True))
        p = tl.exp(scores - top)
        own_p = tl.exp(own_score - top)
        share = 1.0 / (own_p + tl.sum(p, axis=0, keep_dims=True))
        attended = (own_p * own_value + tl.sum(p * values, axis=0, keep_dims=True)) * share
        out = tl.where(member == i, attended, out)
    out_at = (token * NUM_HEADS + head) * HEAD_DIM + dim
    tl.store(out_ptr + out_at, out.to(out_ptr.dtype.element_ty), mask=member < group)
