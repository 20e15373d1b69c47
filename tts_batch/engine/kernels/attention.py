"""Attention over paged KV: one token a row (decode), or packed prompts (prefill). The only attention of runner v2."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_batch.engine.kernels.backend import jit, next_power_of_2, tl, triton, uses_triton

_MIN_DOT_ROWS = 16  # the tensor cores' smallest tile: the queries of a KV head are padded up to it


def decode_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, context_lens: Tensor) -> Tensor:
    """Each token attends to the first `context_lens` tokens of its own pages.

    Args:
        q: [N, Hq, D].
        k_cache, v_cache: [num_pages, Hkv, page_size, D].
        block_table: int32 [N, max_pages], the pages of each token's sequence, in order.
        context_lens: int32 [N]; 0 gives zeros.

    Returns:
        [N, Hq, D], scaled by D**-0.5 inside.
    """
    num_tokens, num_heads, head_dim = q.shape
    _, num_kv_heads, page_size, _ = k_cache.shape
    if not uses_triton(q):
        return _decode_twin(q, k_cache, v_cache, block_table, context_lens)
    out = torch.empty_like(q)
    group = num_heads // num_kv_heads
    _decode_kernel[(num_tokens, num_kv_heads)](
        q, k_cache, v_cache, block_table, context_lens, out, block_table.stride(0), head_dim**-0.5,
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, GROUP=group, ROWS=max(_MIN_DOT_ROWS, next_power_of_2(group)),
        PAGE_SIZE=page_size, HEAD_DIM=head_dim, num_warps=4 if page_size >= 64 else 1, num_stages=2,
    )  # fmt: skip
    return out


def _decode_twin(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, context_lens: Tensor) -> Tensor:
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
def _decode_kernel(
    q_ptr, k_ptr, v_ptr, block_table_ptr, context_lens_ptr, out_ptr, table_stride, scale,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    PAGE_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    row = tl.arange(0, ROWS)
    dim = tl.arange(0, HEAD_DIM)
    offset = tl.arange(0, PAGE_SIZE)
    head = kv_head * GROUP + row
    q_at = (token * NUM_HEADS + head)[:, None] * HEAD_DIM + dim[None, :]
    q = tl.load(q_ptr + q_at, mask=(row < GROUP)[:, None], other=0.0)

    context_len = tl.load(context_lens_ptr + token)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_DIM], tl.float32)
    for start in range(0, context_len, PAGE_SIZE):
        page = tl.load(block_table_ptr + token * table_stride + start // PAGE_SIZE).to(tl.int64)
        at = ((page * NUM_KV_HEADS + kv_head) * PAGE_SIZE + offset)[:, None] * HEAD_DIM + dim[None, :]
        valid = start + offset < context_len
        k = tl.load(k_ptr + at, mask=valid[:, None], other=0.0)
        v = tl.load(v_ptr + at, mask=valid[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where(valid[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        shrink = tl.exp(top - new_top)
        p = tl.exp(scores - new_top[:, None])
        total = total * shrink + tl.sum(p, axis=1)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        top = new_top
    acc = acc / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out_ptr + q_at, acc.to(out_ptr.dtype.element_ty), mask=(row < GROUP)[:, None])


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
    if not uses_triton(q):
        lens = (cu_seqlens[1:] - cu_seqlens[:-1]).long()
        sequence = torch.repeat_interleave(torch.arange(num_seqs, device=q.device), lens)
        inside = torch.arange(q.shape[0], device=q.device) - cu_seqlens.long()[sequence]
        context_lens = (starts.long()[sequence] + inside + 1).to(torch.int32)
        return _decode_twin(q, k_cache, v_cache, block_table[sequence], context_lens)
    out = torch.empty_like(q)
    block = 64
    _prefill_kernel[(triton.cdiv(max_len, block), num_seqs, num_heads)](
        q, k_cache, v_cache, block_table, cu_seqlens, starts, out, block_table.stride(0), head_dim**-0.5,
        NUM_HEADS=num_heads, NUM_KV_HEADS=num_kv_heads, BLOCK=block, PAGE_SIZE=page_size, HEAD_DIM=head_dim,
        num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


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
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where((start + offset)[None, :] <= position[:, None], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, axis=1))
        shrink = tl.exp(top - new_top)
        p = tl.exp(scores - new_top[:, None])
        total = total * shrink + tl.sum(p, axis=1)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        top = new_top
    acc = acc / total[:, None]
    tl.store(out_ptr + q_at, acc.to(out_ptr.dtype.element_ty), mask=(row < length)[:, None])
