"""The frame loop's state of active requests, as device tensors [slots, …] without Python objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tts_batch.engine.loops import NUM_LAGS
from tts_batch.engine.request import NUM_CODEBOOKS, SamplingParams
from tts_batch.engine.sampling import SamplingTable, Warp

RUNNING, DONE_EOS, DONE_LENGTH, DONE_LOOP, DONE_CANCELLED, DONE_LOST = range(6)
"""Values of `RequestState.done`. A free slot is DONE_CANCELLED: running over it changes nothing.
DONE_LOST exists on the host only: the row kept running, but its hidden state is not finite."""


@dataclass(frozen=True, slots=True)
class StateShape:
    """Sizes that are fixed while a runner lives."""

    num_slots: int
    hidden_size: int
    vocab_size: int  # of the first codebook, control tokens included
    max_frames: int
    max_trailing: int  # text ids queued behind a prompt
    max_pages: int  # KV pages of one request
    pad_text_id: int


class RequestState:
    """Hot state of every slot. A step gathers by slot; a slot is written whole when a request takes it."""

    def __init__(self, shape: StateShape, dtype: torch.dtype, device: torch.device | str) -> None:
        slots = shape.num_slots

        def zeros(*size: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(slots, *size, dtype=dtype, device=device)

        self.shape = shape
        self.device = torch.device(device)
        self.pad_text_id = shape.pad_text_id
        self.hidden = zeros(shape.hidden_size, dtype=dtype)  # after the final norm, of the last position
        self.positions = zeros(dtype=torch.int32)  # where the next token goes
        self.num_frames = zeros(dtype=torch.int32)
        self.max_frames = zeros(dtype=torch.int32)
        self.done = zeros(dtype=torch.int32).fill_(DONE_CANCELLED)
        self.seen = zeros(shape.vocab_size, dtype=torch.bool)  # first codes generated so far
        self.repeats = zeros(NUM_LAGS, dtype=torch.int32)  # the runs of engine/loops.py
        self.few = zeros(dtype=torch.int32)
        self.codes = zeros(shape.max_frames, NUM_CODEBOOKS, dtype=torch.int16)
        self.trailing_ids = zeros(shape.max_trailing, dtype=torch.int32)
        self.trailing_lens = zeros(dtype=torch.int32)
        self.block_table = zeros(shape.max_pages, dtype=torch.int32)
        self.seeds = zeros(2, dtype=torch.int32)
        # talker temperature, top_p; predictor temperature, top_p; repetition penalty
        self.warp_floats = zeros(5, dtype=torch.float32)
        # talker do_sample, top_k; predictor do_sample, top_k; min_new_tokens
        self.warp_ints = zeros(5, dtype=torch.int32)

    def sampling(self, rows: Tensor) -> SamplingTable:
        """The sampling parameters of some slots, as the plain pipeline takes them: int64 [N]."""
        floats, ints = self.warp_floats[rows], self.warp_ints[rows].long()

        def warp(column: int) -> Warp:
            top_k, top_p = ints[:, column + 1], floats[:, column + 1]
            return Warp(
                do_sample=ints[:, column].bool(),
                temperature=floats[:, column],
                top_k=top_k,
                top_p=top_p,
                any_sampled=True,
                max_top_k=int(top_k.max()),
                any_top_p=bool((top_p < 1.0).any()),
            )

        return SamplingTable(warp(0), warp(2), repetition_penalty=floats[:, 4], min_new_tokens=ints[:, 4])

    def start(self, slots: Tensor, rows: AdmittedRows) -> None:
        """Write every field of the given slots int64 [N], so that nothing of an earlier request is read."""
        self.positions[slots] = rows.prompt_lens
        # index_fill_, not assignment: to assign a number to indexed places makes the host wait for the device.
        self.num_frames.index_fill_(0, slots, 0)
        self.max_frames[slots] = rows.max_frames
        self.seen.index_fill_(0, slots, False)
        self.repeats.index_fill_(0, slots, 0)
        self.few.index_fill_(0, slots, 0)
        self.trailing_ids[slots, : rows.trailing_ids.shape[1]] = rows.trailing_ids
        self.trailing_lens[slots] = rows.trailing_lens
        self.block_table[slots, : rows.block_table.shape[1]] = rows.block_table
        self.seeds[slots] = rows.seeds
        self.warp_floats[slots] = rows.warp_floats
        self.warp_ints[slots] = rows.warp_ints
        self.done.index_fill_(0, slots, RUNNING)


class AdmittedRows(NamedTuple):
    """What a burst of admissions brings, one row a request."""

    prompt_lens: Tensor  # int32 [N]
    max_frames: Tensor  # int32 [N]
    trailing_ids: Tensor  # int32 [N, longest of the burst]
    trailing_lens: Tensor  # int32 [N]
    block_table: Tensor  # int32 [N, longest of the burst]
    seeds: Tensor  # int32 [N, 2]
    warp_floats: Tensor  # float32 [N, 5]
    warp_ints: Tensor  # int32 [N, 5]


def warp_rows(params: Sequence[SamplingParams]) -> tuple[Tensor, Tensor]:
    """The `warp_floats` and `warp_ints` of some requests. A greedy stage warps nothing, as in engine/sampling.py."""
    floats, ints = [], []
    for p in params:
        talker = (p.temperature, p.top_p, p.top_k) if p.do_sample else (1.0, 1.0, 0)
        predictor = (
            (p.subtalker_temperature, p.subtalker_top_p, p.subtalker_top_k) if p.subtalker_dosample else (1.0, 1.0, 0)
        )
        floats.append((*talker[:2], *predictor[:2], p.repetition_penalty))
        ints.append((p.do_sample, talker[2], p.subtalker_dosample, predictor[2], p.min_new_tokens))
    return torch.tensor(floats, dtype=torch.float32), torch.tensor(ints, dtype=torch.int32)
