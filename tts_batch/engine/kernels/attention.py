"""Attention over paged KV: one token a row (decode), or packed prompts (prefill). The talker's in runner v2."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_batch.engine.kernels.backend import (
    jit,
    launch_fitting,
    launches_early,
    next_power_of_2,
    tl,
    triton,
    uses_triton,
)
from tts_batch.engine.kernels.rotary_cache import Rotation, load_heads, members_of, pick, rotate_and_cache

DECODE_LAUNCH = {"num_warps": 2, "num_stages": 2}  # benchmarks/kernels/bench_attention.py measures others
PREFILL_LAUNCHES = ((64, 2), (64, 1), (32, 1), (16, 1))  # queries of a program, stages: less shared memory each
_MIN_DOT_ROWS = 16  # the tensor cores' smallest tile: the queries of a KV head are padded up to it


def decode_attention(
    qkv: Tensor, rotation: Rotation, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, context_lens: Tensor
) -> Tensor:
    """One token of each sequence, from its packed q-k-v product to what it attends to; its k and v join the pages.

    Args:
        qkv: [N, (Hq + 2 Hkv) D], heads of q, then k, then v.
        k_cache, v_cache: [num_pages, Hkv, page_size, D].
        block_table: int32 [N, max_pages], the pages of each sequence, in order.
        context_lens: int32 [N], tokens of each sequence with this one, whose position is the last; 0: the sequence is
            over, nothing is stored and zeros are returned.

    Returns:
        [N, Hq D], scaled by D**-0.5 inside.
    """
    num_tokens = qkv.shape[0]
    _, num_kv_heads, page_size, head_dim = k_cache.shape
    num_heads = qkv.shape[1] // head_dim - 2 * num_kv_heads
    if not uses_triton(qkv):
        position = (context_lens - 1).clamp(min=0)
        page = block_table.gather(1, (position // page_size).long()[:, None])[:, 0]
        slot_mapping = torch.where(context_lens > 0, page * page_size + position % page_size, -1)
        q = rotate_and_cache(qkv, rotation, position, slot_mapping, k_cache, v_cache)
        return _attend_twin(q, k_cache, v_cache, block_table, context_lens).flatten(1)
    out = torch.empty(num_tokens, num_heads * head_dim, dtype=qkv.dtype, device=qkv.device)
    members = next_power_of_2(num_heads // num_kv_heads + 2)  # a KV head's queries, its key and its value
    _decode_kernel[(num_tokens, num_kv_heads)](
        qkv, *rotation, k_cache, v_cache, block_table, context_lens, out, block_table.stride(0), head_dim**-0.5,
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, MEMBERS=members, ROWS=max(_MIN_DOT_ROWS, members),
        PAGE_SIZE=page_size, HEAD_DIM=head_dim, EARLY=launches_early(qkv.device), **DECODE_LAUNCH,
    )  # fmt: skip
    return out


def _attend_twin(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, context_lens: Tensor) -> Tensor:
    """Each token of q [N, Hq, D] attends to the first `context_lens` tokens of its own pages."""
    num_pages = -(-int(context_lens.max()) // k_cache.shape[2]) or 1
    pages = block_table[:, :num_pages].long().clamp(min=0)
    num_tokens = num_pages * k_cache.shape[2]
    mask = torch.arange(num_tokens, device=q.device) < context_lens[:, None]
    # [N, Hkv, tokens, D], without what an unwritten page may hold: a mask alone does not stop a NaN.
    k, v = (
        cache[pages].transpose(1, 2).flatten(2, 3).masked_fill(~mask[:, None, :, None], 0)
        for cache in (k_cache, v_cache)
    )
    # A sequence without context would be 0 / 0.
    out = F.scaled_dot_product_attention(q[:, :, None], k, v, attn_mask=mask[:, None, None], enable_gqa=True)[:, :, 0]
    return torch.where((context_lens > 0)[:, None, None], out, torch.zeros_like(out))


@jit
def _attend(q, k, v, visible, scale, top, total, acc):
    """One step of the online softmax: q [M, D] meets some keys and values [T, D], where visible [M or 1, T]."""
    scores = tl.where(visible, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, axis=1))
    shrink = tl.exp(top - new_top)
    p = tl.exp(scores - new_top[:, None])
    total = total * shrink + tl.sum(p, axis=1)
    acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    return new_top, total, acc


@jit
def _decode_kernel(
    qkv_ptr, q_norm_ptr, k_norm_ptr, eps, cos_ptr, sin_ptr, k_ptr, v_ptr, block_table_ptr, context_lens_ptr, out_ptr,
    table_stride, scale,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, MEMBERS: tl.constexpr, ROWS: tl.constexpr,
    PAGE_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()  # a product of small_batch.py may fetch its weights meanwhile
    token = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    group: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    dim = tl.arange(0, HEAD_DIM)[None, :]
    member = tl.arange(0, MEMBERS)[:, None]
    context_len = tl.load(context_lens_ptr + token)
    position = tl.maximum(context_len - 1, 0)
    heads = load_heads(
        qkv_ptr + token * (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM,
        members_of(kv_head, member, NUM_HEADS, NUM_KV_HEADS), q_norm_ptr, k_norm_ptr, eps, cos_ptr, sin_ptr, position,
        NUM_HEADS, NUM_KV_HEADS, HEAD_DIM,
    )  # fmt: skip
    table = block_table_ptr + token * table_stride
    page = tl.load(table + position // PAGE_SIZE).to(tl.int64)
    own = ((page * NUM_KV_HEADS + kv_head) * PAGE_SIZE + position % PAGE_SIZE + member * 0) * HEAD_DIM + dim
    tl.store(k_ptr + own, heads, mask=(member == group) & (context_len > 0))
    tl.store(v_ptr + own, heads, mask=(member == group + 1) & (context_len > 0))

    # The token itself comes first, out of registers: what this program has just stored it need not see. The rows of q
    # repeat all members, key and value too, up to the tensor cores' tile; only the first `group` of them are wanted.
    q = tl.reshape(tl.broadcast_to(heads[None, :, :], (ROWS // MEMBERS, MEMBERS, HEAD_DIM)), (ROWS, HEAD_DIM))
    heads = heads.to(tl.float32)
    top = tl.sum(q.to(tl.float32) * pick(heads, member, group), axis=1) * scale
    total = tl.full([ROWS], 1.0, tl.float32)
    acc = tl.broadcast_to(pick(heads, member, group + 1), (ROWS, HEAD_DIM))
    offset = tl.arange(0, PAGE_SIZE)
    for start in range(0, position, PAGE_SIZE):
        page = tl.load(table + start // PAGE_SIZE).to(tl.int64)
        at = ((page * NUM_KV_HEADS + kv_head) * PAGE_SIZE + offset)[:, None] * HEAD_DIM + dim
        stored = start + offset < position
        keys = tl.load(k_ptr + at, mask=stored[:, None], other=0.0)
        values = tl.load(v_ptr + at, mask=stored[:, None], other=0.0)
        top, total, acc = _attend(q, keys, values, stored[None, :], scale, top, total, acc)
    acc = tl.where(context_len > 0, acc / total[:, None], 0.0)
    row = tl.arange(0, ROWS)[:, None]
    out = out_ptr + (token * NUM_HEADS + kv_head * group + row) * HEAD_DIM + dim
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=row < group)


def prefill_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, cu_seqlens: Tensor, starts: Tensor, max_len: int
) -> Tensor:
    """Causal attention of packed prompt chunks, whose keys and values are already in their pages.

    Args:
        q: [N, Hq, D], sequence after sequence.
        block_table: int32 [num_seqs, max_pages].
        cu_seqlens: int32 [num_seqs + 1], where each sequence's tokens begin in q.
        starts: int32 [num_seqs], how many tokens of each sequence earlier chunks have stored.
        max_len: the longest chunk, on the host.

    Returns:
        [N, Hq, D].
    """
    num_seqs = block_table.shape[0]
    num_heads, head_dim = q.shape[1:]
    _, num_kv_heads, page_size, _ = k_cache.shape

    def twin() -> Tensor:
        lens = (cu_seqlens[1:] - cu_seqlens[:-1]).long()
        sequence = torch.repeat_interleave(torch.arange(num_seqs, device=q.device), lens)
        inside = torch.arange(q.shape[0], device=q.device) - cu_seqlens.long()[sequence]
        context_lens = (starts.long()[sequence] + inside + 1).to(torch.int32)
        return _attend_twin(q, k_cache, v_cache, block_table[sequence], context_lens)

    def launch(option: tuple[int, int]) -> None:
        block, num_stages = option
        _prefill_kernel[(triton.cdiv(max_len, block), num_seqs, num_heads)](
            q, k_cache, v_cache, block_table, cu_seqlens, starts, out, block_table.stride(0), head_dim**-0.5,
            NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, BLOCK=block, PAGE_SIZE=page_size, HEAD_DIM=head_dim,
            num_warps=4, num_stages=num_stages,
        )  # fmt: skip

    if not uses_triton(q):
        return twin()
    out = torch.empty_like(q)
    key = ("prefill_attention", q.device, q.dtype, num_heads, num_kv_heads, page_size, head_dim)
    return out if launch_fitting(key, PREFILL_LAUNCHES, launch) else twin()


@jit
def _prefill_kernel(
    q_ptr, k_ptr, v_ptr, block_table_ptr, cu_seqlens_ptr, starts_ptr, out_ptr, table_stride, scale,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, BLOCK: tl.constexpr, PAGE_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(1)
    head = tl.program_id(2)
    first = tl.load(cu_seqlens_ptr + sequence)
    length = tl.load(cu_seqlens_ptr + sequence + 1) - first
    start_q = tl.program_id(0) * BLOCK
    if start_q >= length:
        return
    stored = tl.load(starts_ptr + sequence)
    kv_head = head // (NUM_HEADS // NUM_KV_HEADS)
    row = start_q + tl.arange(0, BLOCK)
    dim = tl.arange(0, HEAD_DIM)
    offset = tl.arange(0, PAGE_SIZE)
    q_at = ((first + row).to(tl.int64) * NUM_HEADS + head)[:, None] * HEAD_DIM + dim[None, :]
    q = tl.load(q_ptr + q_at, mask=(row < length)[:, None], other=0.0)
    position = stored + row

    top = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    acc = tl.zeros([BLOCK, HEAD_DIM], tl.float32)
    end = stored + tl.minimum(start_q + BLOCK, length)
    for start in range(0, end, PAGE_SIZE):
        page = tl.load(block_table_ptr + sequence * table_stride + start // PAGE_SIZE).to(tl.int64)
        at = ((page * NUM_KV_HEADS + kv_head) * PAGE_SIZE + offset)[:, None] * HEAD_DIM + dim[None, :]
        valid = start + offset < end
        k = tl.load(k_ptr + at, mask=valid[:, None], other=0.0)
        v = tl.load(v_ptr + at, mask=valid[:, None], other=0.0)
        visible = (start + offset)[None, :] <= position[:, None]
        top, total, acc = _attend(q, k, v, visible, scale, top, total, acc)
    acc = acc / total[:, None]
    tl.store(out_ptr + q_at, acc.to(out_ptr.dtype.element_ty), mask=(row < length)[:, None])
