"""The end of a frame: its codes join the row's and are watched for loops, and become the talker's next input."""

from __future__ import annotations

import torch
from torch import Tensor

from tts_batch.engine.kernels.backend import jit, next_power_of_2, tl, triton, uses_triton
from tts_batch.engine.loops import FRESH, NUM_LAGS, LoopLimits, count_loops, is_loop
from tts_batch.engine.v2.request_state import DONE_LOOP, RUNNING, RequestState


def append_frame(state: RequestState, slots: Tensor, codes: Tensor, limits: LoopLimits) -> tuple[Tensor, Tensor]:
    """Append codes int32 [N, 16] to the running rows and step them forward. A row that loops ends here (DONE_LOOP).

    Returns:
        The context lengths int32 [N] of the talker step, 0 for a row that is over, and the text id int32 [N] that
        goes with the frame.
    """
    num_rows = slots.shape[0]
    context_lens, text_ids = torch.empty(2, num_rows, dtype=torch.int32, device=codes.device)
    if uses_triton(codes):
        _append_kernel[(num_rows,)](
            slots, codes, state.codes, state.codes.stride(0), state.num_frames, state.positions, state.done,
            state.trailing_ids, state.trailing_ids.stride(0), state.trailing_lens, state.pad_text_id, context_lens,
            text_ids, state.repeats, state.few,
            MAX_REPEATS=limits.repeated_frames, MAX_FEW=limits.few_codes_frames, LAGS=NUM_LAGS, FRESH_CODE=FRESH,
            LOOP=DONE_LOOP, num_warps=1,
        )  # fmt: skip
        return context_lens, text_ids
    rows = slots.long()
    running = state.done[rows] == RUNNING
    frame, position = state.num_frames[rows].long(), state.positions[rows].long()
    queued = frame < state.trailing_lens[rows]
    last = state.trailing_ids.shape[1] - 1
    text_ids.copy_(torch.where(queued, state.trailing_ids[rows, frame.clamp(max=last)], state.pad_text_id))
    context_lens.copy_(torch.where(running, position + 1, 0))
    _watch(state, rows[running], codes[running, 0], ~queued[running], limits)
    state.codes[rows[running], frame[running]] = codes[running].to(state.codes.dtype)
    state.num_frames[rows[running]] += 1
    state.positions[rows[running]] += 1
    return context_lens, text_ids


def _watch(state: RequestState, rows: Tensor, code0: Tensor, text_is_over: Tensor, limits: LoopLimits) -> None:
    before = state.num_frames[rows].long()[:, None] - 1 - torch.arange(NUM_LAGS, device=rows.device)
    previous = torch.where(before >= 0, state.codes[rows[:, None], before.clamp(min=0), 0], -1)
    repeats, few = count_loops(code0, previous, text_is_over, state.repeats[rows], state.few[rows])
    state.repeats[rows], state.few[rows] = repeats, few
    state.done[rows[is_loop(repeats, few, limits)]] = DONE_LOOP


@jit
def _append_kernel(
    slots_ptr, new_codes_ptr, codes_ptr, codes_stride, num_frames_ptr, positions_ptr, done_ptr, trailing_ptr,
    trailing_stride, trailing_lens_ptr, pad_text_id, context_lens_ptr, text_ids_ptr, repeats_ptr, few_ptr,
    MAX_REPEATS: tl.constexpr, MAX_FEW: tl.constexpr, LAGS: tl.constexpr, FRESH_CODE: tl.constexpr,
    LOOP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    running = tl.load(done_ptr + slot) == 0
    frame = tl.load(num_frames_ptr + slot)
    position = tl.load(positions_ptr + slot)
    queued = frame < tl.load(trailing_lens_ptr + slot)
    text_id = tl.load(trailing_ptr + slot * trailing_stride + frame, mask=queued, other=0)
    tl.store(text_ids_ptr + row, tl.where(queued, text_id, pad_text_id))
    tl.store(context_lens_ptr + row, tl.where(running, position + 1, 0))
    codebook = tl.arange(0, 16)
    codes = tl.load(new_codes_ptr + row * 16 + codebook)
    tl.store(codes_ptr + slot * codes_stride + frame * 16 + codebook, codes.to(tl.int16), mask=running)
    tl.store(num_frames_ptr + slot, frame + 1, mask=running)
    tl.store(positions_ptr + slot, position + 1, mask=running)

    # engine/loops.py
    lag = tl.arange(0, LAGS)
    before = frame - 1 - lag
    previous = tl.load(codes_ptr + slot * codes_stride + before * 16, mask=running & (before >= 0), other=-1)
    same = previous.to(tl.int32) == tl.load(new_codes_ptr + row * 16)
    repeats = tl.where(same, tl.load(repeats_ptr + slot * LAGS + lag) + 1, 0)
    few = tl.load(few_ptr + slot)
    few = tl.where(tl.max(same.to(tl.int32), axis=0) != 0, few + 1, tl.maximum(few - FRESH_CODE, 0))
    few = tl.where(queued, 0, few)
    tl.store(repeats_ptr + slot * LAGS + lag, repeats, mask=running)
    tl.store(few_ptr + slot, few, mask=running)
    if MAX_REPEATS > 0:
        tl.store(done_ptr + slot, LOOP, mask=running & (tl.max(repeats, axis=0) >= MAX_REPEATS))
    if MAX_FEW > 0:
        tl.store(done_ptr + slot, LOOP, mask=running & (few >= MAX_FEW))


def embed_frame(codes: Tensor, tables: Tensor, offsets: Tensor, text_ids: Tensor, text_table: Tensor) -> Tensor:
    """The talker's input after a frame: one float32 sum over its codes, rounded once, plus the text vector.

    Args:
        codes: int32 [N, 16].
        tables: [sum of vocabularies, H], the sixteen embedding tables one after another.
        offsets: int32 [16], where each begins.
        text_ids: int32 [N], rows of text_table [num_texts, H].

    Returns:
        [N, H].
    """
    if not uses_triton(codes):
        vectors = tables[codes.long() + offsets.long()].sum(dim=1, dtype=torch.float32).to(tables.dtype)
        return vectors + text_table[text_ids.long()]
    num_rows, width = codes.shape[0], tables.shape[1]
    out = torch.empty(num_rows, width, dtype=tables.dtype, device=tables.device)
    block = min(1024, next_power_of_2(width))
    _embed_kernel[(num_rows, triton.cdiv(width, block))](
        codes, tables, offsets, text_ids, text_table, out, width, BLOCK=block, num_warps=4
    )
    return out


@jit
def _embed_kernel(
    codes_ptr, tables_ptr, offsets_ptr, text_ids_ptr, text_table_ptr, out_ptr, width, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < width
    dtype = out_ptr.dtype.element_ty
    total = tl.zeros([BLOCK], tl.float32)
    for codebook in range(16):
        entry = tl.load(codes_ptr + row * 16 + codebook) + tl.load(offsets_ptr + codebook)
        total += tl.load(tables_ptr + entry.to(tl.int64) * width + cols, mask=mask, other=0.0).to(tl.float32)
    text_id = tl.load(text_ids_ptr + row).to(tl.int64)
    text = tl.load(text_table_ptr + text_id * width + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + cols, (total.to(dtype).to(tl.float32) + text).to(dtype), mask=mask)
