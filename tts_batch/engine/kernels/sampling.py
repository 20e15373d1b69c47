"""One code of every row, chosen in one kernel: penalty, bans, temperature, top-k, top-p, noise, and what follows it.

The pipeline is engine/sampling.py's and the noise engine/noise.py's, bit by bit; the twin calls them. The talker's
kernel also decides whether the row is over, and both write the next input of the code predictor, so that a frame
needs no other kernel between two of its passes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tts_batch.engine.kernels.backend import jit, next_power_of_2, tl, uses_triton
from tts_batch.engine.noise import frame_keys
from tts_batch.engine.sampling import predictor_scores, suppressed_ids, talker_scores
from tts_batch.engine.v2.request_state import DONE_EOS, DONE_LENGTH, RUNNING, RequestState

LAUNCH = {"num_warps": 4}


def sample_code0(
    state: RequestState, slots: Tensor, logits: Tensor, eos_id: int, codes: Tensor, next_table: Tensor, next_x: Tensor
) -> None:
    """Choose the first code of the next frame and end the rows that are over.

    A running row ends on the EOS (DONE_EOS), or on anything else once it holds its whole budget (DONE_LENGTH).
    Otherwise its code joins the row's set of seen codes.

    Args:
        slots: int32 [N], each row's slot; a slot stands in at most one running row.
        logits: [N, vocab].
        codes: int32 [N, 16]; column 0 is written (an ended row gets a valid code that is never read).
        next_table: [vocab, W], the code predictor's input for each code.
        next_x: [N, W], rows may be strided; receives next_table[code].
    """
    vocab = logits.shape[1]
    if not uses_triton(logits):
        rows = slots.long()
        keys = frame_keys(state.seeds[rows], state.num_frames[rows])
        table = state.sampling(rows)
        scores = talker_scores(
            logits,
            state.seen[rows],
            state.num_frames[rows],
            suppressed_ids(vocab, eos_id, logits.device),
            eos_id,
            table,
        )
        code = table.talker.choose(scores, keys[:, 0])
        running = state.done[rows] == RUNNING
        over = torch.where(code == eos_id, DONE_EOS, DONE_LENGTH)
        ends = (code == eos_id) | (state.num_frames[rows] >= state.max_frames[rows])
        state.done[rows[running & ends]] = over[running & ends].to(state.done.dtype)
        goes_on = running & ~ends
        state.seen[rows[goes_on], code[goes_on]] = True
        codes[:, 0] = torch.where(code == eos_id, 0, code)
        next_x.copy_(next_table[codes[:, 0].long()])
        return
    _launch(state, slots, logits, 0, eos_id, codes, next_table, next_x)


def sample_code(
    state: RequestState, slots: Tensor, logits: Tensor, codebook: int, codes: Tensor, next_table: Tensor | None,
    next_x: Tensor | None,
) -> None:  # fmt: skip
    """Choose the code of codebook 1..15 of the frame under way: logits [N, 2048] -> column `codebook` of codes."""
    if not uses_triton(logits):
        rows = slots.long()
        keys = frame_keys(state.seeds[rows], state.num_frames[rows])
        table = state.sampling(rows)
        code = table.predictor.choose(predictor_scores(logits, table), keys[:, codebook])
        codes[:, codebook] = code
        if next_table is not None and next_x is not None:
            next_x.copy_(next_table[code])
        return
    _launch(state, slots, logits, codebook, -1, codes, next_table, next_x)


def _launch(
    state: RequestState, slots: Tensor, logits: Tensor, codebook: int, eos_id: int, codes: Tensor,
    next_table: Tensor | None, next_x: Tensor | None,
) -> None:  # fmt: skip
    is_talker = codebook == 0
    num_acoustic = state.seen.shape[1] - 1024 if is_talker else logits.shape[1]
    width = 1 if next_x is None else next_x.shape[1]
    # A bfloat16 logit is decided by its upper 16 bits, as long as no penalty has touched it.
    key_bits = 16 if logits.dtype == torch.bfloat16 and not is_talker else 32
    _sample_kernel[(slots.shape[0],)](
        logits, logits.stride(0), slots, state.warp_floats, state.warp_ints, state.seeds, state.num_frames,
        state.max_frames, state.seen, state.seen.stride(0), state.done, codes, codebook, eos_id,
        logits if next_table is None else next_table, logits if next_x is None else next_x,
        0 if next_x is None else next_x.stride(0), width,
        VOCAB=num_acoustic, TALKER=is_talker, KEY_BITS=key_bits, HAS_NEXT=next_x is not None,
        NEXT_BLOCK=next_power_of_2(width), EOS=DONE_EOS, LENGTH=DONE_LENGTH, **LAUNCH,
    )  # fmt: skip


@jit
def _mix(x):
    x = x ^ (x >> 16)
    x = x * 0x7FEB352D
    x = x ^ (x >> 15)
    x = x * 0x846CA68B
    return x ^ (x >> 16)


@jit
def _gumbel(a, b, token):
    bits = _mix(_mix(a ^ token.to(tl.uint32)) + b)
    uniform = ((bits >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07  # 2**-23
    return -tl.log(-tl.log(uniform))


@jit
def _ordered(x):
    """float32 -> uint32 that sorts the same way."""
    bits = x.to(tl.uint32, bitcast=True)
    return tl.where((bits >> 31) != 0, bits ^ 0xFFFFFFFF, bits | 0x80000000)


@jit
def _sample_kernel(
    logits_ptr, logits_stride, slots_ptr, floats_ptr, ints_ptr, seeds_ptr, num_frames_ptr, max_frames_ptr,
    seen_ptr, seen_stride, done_ptr, codes_ptr, codebook, eos_id, next_table_ptr, next_x_ptr, next_stride, next_width,
    VOCAB: tl.constexpr, TALKER: tl.constexpr, KEY_BITS: tl.constexpr, HAS_NEXT: tl.constexpr,
    NEXT_BLOCK: tl.constexpr, EOS: tl.constexpr, LENGTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    token = tl.arange(0, VOCAB)
    column: tl.constexpr = 0 if TALKER else 2
    temperature = tl.load(floats_ptr + slot * 5 + column)
    top_p = tl.load(floats_ptr + slot * 5 + column + 1)
    do_sample = tl.load(ints_ptr + slot * 5 + column)
    top_k = tl.load(ints_ptr + slot * 5 + column + 1)
    frame = tl.load(num_frames_ptr + slot)

    scores = tl.load(logits_ptr + row * logits_stride + token).to(tl.float32)
    keys = _ordered(scores)
    eos_score = tl.full([], float("-inf"), tl.float32)
    if TALKER:
        penalty = tl.load(floats_ptr + slot * 5 + 4)
        seen = tl.load(seen_ptr + slot * seen_stride + token) != 0
        scores = tl.where(seen, tl.where(scores > 0, scores / penalty, scores * penalty), scores)
        if frame >= tl.load(ints_ptr + slot * 5 + 4):
            eos_score = tl.load(logits_ptr + row * logits_stride + eos_id).to(tl.float32) / temperature
    scores = scores / temperature
    if KEY_BITS == 32:
        keys = _ordered(scores)
    eos_key = _ordered(eos_score)

    if top_k > 0:
        # The k-th largest key, bit by bit from above: what is equal to it stays. A candidate that exactly k keys reach
        # cuts as the k-th itself does.
        threshold = tl.full([], 0, tl.uint32)
        count = tl.full([], VOCAB + 1, tl.int32)
        bit = tl.full([], 0x80000000, tl.uint32)
        while (bit >> (32 - KEY_BITS)) != 0 and count != top_k:
            candidate = threshold | bit
            count = tl.sum((keys >= candidate).to(tl.int32), axis=0) + (eos_key >= candidate).to(tl.int32)
            threshold = tl.where(count >= top_k, candidate, threshold)
            bit = bit >> 1
        scores = tl.where(keys >= threshold, scores, float("-inf"))
        eos_score = tl.where(eos_key >= threshold, eos_score, float("-inf"))
    if top_p < 1.0:
        # The largest key at or above which the scores hold at least top_p of the mass.
        keys = _ordered(scores)
        eos_key = _ordered(eos_score)
        top = tl.maximum(tl.max(scores, axis=0), eos_score)
        mass = tl.exp(scores - top)
        eos_mass = tl.exp(eos_score - top)
        wanted = top_p * (tl.sum(mass, axis=0) + eos_mass)
        threshold = tl.full([], 0, tl.uint32)
        for i in range(32):
            candidate = threshold | (tl.full([], 0x80000000, tl.uint32) >> i)
            held = tl.sum(tl.where(keys >= candidate, mass, 0.0), axis=0) + tl.where(
                eos_key >= candidate, eos_mass, 0.0
            )
            threshold = tl.where(held >= wanted, candidate, threshold)
        scores = tl.where(keys >= threshold, scores, float("-inf"))
        eos_score = tl.where(eos_key >= threshold, eos_score, float("-inf"))

    if do_sample != 0:
        seed_lo = tl.load(seeds_ptr + slot * 2).to(tl.uint32, bitcast=True)
        seed_hi = tl.load(seeds_ptr + slot * 2 + 1).to(tl.uint32, bitcast=True)
        place = (frame * 16 + codebook).to(tl.uint32)
        a = _mix(_mix(_mix(seed_lo ^ 0x9E3779B9) ^ seed_hi) ^ place)
        b = _mix(_mix(_mix(seed_hi ^ 0x85EBCA6B) ^ seed_lo) ^ place)
        scores += _gumbel(a, b, token)
        if TALKER:
            eos_score += _gumbel(a, b, tl.full([], 0, tl.int32) + eos_id)
    code = tl.argmax(scores, axis=0)

    if TALKER:
        is_eos = eos_score > tl.max(scores, axis=0)
        ends = is_eos | (frame >= tl.load(max_frames_ptr + slot))
        running = tl.load(done_ptr + slot) == 0
        tl.store(done_ptr + slot, tl.where(is_eos, EOS, LENGTH), mask=running & ends)
        tl.store(seen_ptr + slot * seen_stride + code, 1, mask=running & (ends == 0))
        code = tl.where(is_eos, 0, code)
    tl.store(codes_ptr + row * 16 + codebook, code)
    if HAS_NEXT:
        cols = tl.arange(0, NEXT_BLOCK)
        mask = cols < next_width
        vector = tl.load(next_table_ptr + code.to(tl.int64) * next_width + cols, mask=mask)
        tl.store(next_x_ptr + row * next_stride + cols, vector, mask=mask)
