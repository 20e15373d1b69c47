"""Runner v1: one static batch in lockstep, driven by the host frame by frame. The reference semantics."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tts_batch.engine.loops import DEFAULT_LIMITS, NUM_LAGS, LoopLimits, count_loops, is_loop
from tts_batch.engine.meter import Meter
from tts_batch.engine.noise import frame_keys, seed_words
from tts_batch.engine.runner import EngineRow
from tts_batch.engine.sampling import SamplingTable, predictor_scores, suppressed_ids, talker_scores
from tts_batch.engine.v1.kv_cache import DenseKVCache
from tts_batch.model.prompt import embed_prompt

if TYPE_CHECKING:
    from tts_batch.model.layers import DecoderStack
    from tts_batch.model.qwen3_tts import Qwen3TTS
    from tts_batch.model.talker import Talker

LOOK_AHEAD = 2  # batches' worth of rows gathered and sorted by expected length before the first of them starts


class LockstepRunner:
    """Gathers a window of rows, sorts it, and decodes it one batch after another."""

    def __init__(
        self,
        model: Qwen3TTS,
        max_num_seqs: int,
        loop_limits: LoopLimits = DEFAULT_LIMITS,
        meter: Meter | None = None,
    ) -> None:
        self.max_num_seqs = max_num_seqs
        self._meter = meter or Meter()
        self._loop_limits = loop_limits
        self._model = model
        self._waiting: list[EngineRow] = []
        self._gathering = True
        self._batch: _Batch | None = None

    @property
    def room(self) -> int:
        return LOOK_AHEAD * self.max_num_seqs - len(self._waiting) if self._gathering else 0

    @property
    def has_free_slots(self) -> bool:
        return self._gathering

    @property
    def busy(self) -> bool:
        return self._batch is not None or bool(self._waiting)

    def add(self, row: EngineRow) -> None:
        self._waiting.append(row)

    def start_waiting(self) -> None:
        """A batch begins when it is complete."""

    @torch.inference_mode()
    def step(self) -> list[EngineRow]:
        if self._batch is None:
            self._gathering = False
            self._waiting.sort(key=lambda row: row.expected_frames)
            first, self._waiting = self._waiting[-self.max_num_seqs :], self._waiting[: -self.max_num_seqs]
            self._batch = _Batch(self._model, first, self._loop_limits)
            with self._meter.on_device("prefill", self._model.device):
                self._batch.prefill()
            self._meter.counts["prompt_tokens"] += sum(row.prompt.num_tokens for row in first)
        with self._meter.on_device("frame_loop", self._model.device):
            decoded = self._batch.decode_frame()
        self._meter.counts["frames"] += 1
        self._drop_empty_batch()
        return decoded

    def progress(self) -> list[tuple[EngineRow, int]]:
        decoding = self._batch.progress() if self._batch else []
        return decoding + [(row, -1) for row in self._waiting]

    def codes_so_far(self, row: EngineRow, num_frames: int) -> Tensor:
        assert self._batch is not None
        return self._batch.codes_of(row)[:num_frames]

    @torch.inference_mode()
    def cancel(self, request_id: str) -> bool:
        for waiting in self._waiting:
            if waiting.request_id == request_id:
                self._waiting.remove(waiting)
                self._drop_empty_batch()
                return True
        return self._batch is not None and self._cancel_decoding(self._batch, request_id)

    def evict(self) -> list[EngineRow]:
        rows = (self._batch.rows if self._batch else []) + self._waiting
        self._waiting, self._batch, self._gathering = [], None, True
        return rows

    def _cancel_decoding(self, batch: _Batch, request_id: str) -> bool:
        keep = [i for i, row in enumerate(batch.rows) if row.request_id != request_id]
        found = len(keep) < len(batch.rows)
        if found:
            batch.select(keep)
            self._drop_empty_batch()
        return found

    def _drop_empty_batch(self) -> None:
        if self._batch is not None and not self._batch.rows:
            self._batch = None
        self._gathering = not self.busy


class _Batch:
    """The rows that decode together, all of them at the same frame. Rows that end are taken out at once."""

    def __init__(self, model: Qwen3TTS, rows: Sequence[EngineRow], loop_limits: LoopLimits) -> None:
        self.rows = list(rows)
        self._talker: Talker = model.talker
        self._eos_id = model.config.talker.codec_eos_token_id
        self._device = device = self._talker.codec_head.weight.device
        self._frame = 0
        self._codes: list[list[Tensor]] = [[] for _ in rows]  # of each row, its frames [16]

        vocab = model.config.talker.vocab_size
        self._suppressed = suppressed_ids(vocab, self._eos_id, device)
        self._seen = torch.zeros(len(rows), vocab, dtype=torch.bool, device=device)
        self._sampling = SamplingTable.build([row.request.sampling for row in rows], device)
        self._seeds = seed_words([row.request.seed for row in rows], device)

        self._loop_limits = loop_limits
        self._previous = torch.full((len(rows), NUM_LAGS), -1, device=device)  # first codes, the latest first
        self._repeats = torch.zeros(len(rows), NUM_LAGS, dtype=torch.int32, device=device)
        self._few = torch.zeros(len(rows), dtype=torch.int32, device=device)
        self._text_lens = torch.tensor([len(row.prompt.trailing_ids) for row in rows], device=device)

        # The vectors of each row's trailing text, then tts_pad: always the last column.
        pad_id = model.config.tts_pad_token_id
        longest = max(len(row.prompt.trailing_ids) for row in rows)
        queues = [[*row.prompt.trailing_ids, *[pad_id] * (longest + 1 - len(row.prompt.trailing_ids))] for row in rows]
        self._text = self._talker.project_text(torch.tensor(queues, device=device))

    def prefill(self) -> None:
        """Run all prompts; `_hidden` [rows, H] then holds the state that the first frame is sampled from."""
        self._started_s = time.monotonic()
        stack = self._talker.stack
        lengths = [row.prompt.num_tokens for row in self.rows]
        self._cache = _cache_for(stack, len(lengths), capacity=max(lengths) + 1)
        self._lengths = torch.tensor(lengths, device=self._device)
        self._longest = max(lengths)
        embeds = torch.cat([embed_prompt(self._talker, row.prompt, row.ref_codes, row.x_vector) for row in self.rows])
        positions = torch.cat([torch.arange(length, device=self._device) for length in lengths])
        hidden = stack(embeds, *stack.rotary(positions), self._cache.prefill(lengths))
        self._hidden = hidden[self._lengths.cumsum(0) - 1]
        self._prefilled_s = time.monotonic()

    def decode_frame(self) -> list[EngineRow]:
        """Sample one frame of every row, take out the rows that end here, and step the talker for the others."""
        frame = torch.full((len(self.rows),), self._frame, device=self._device)
        keys = frame_keys(self._seeds, frame)
        is_lost = self._hidden.sum(dim=1, dtype=torch.float32).isfinite().logical_not().tolist()
        logits = self._talker.codec_head(self._hidden)
        scores = talker_scores(logits, self._seen, frame, self._suppressed, self._eos_id, self._sampling)
        code0 = self._sampling.talker.choose(scores, keys[:, 0])
        codes = predict_frame(self._talker, self._hidden, code0, keys, self._sampling)

        ended, keep = [], []
        for i, (row, new) in enumerate(zip(self.rows, codes.cpu(), strict=True)):
            if is_lost[i]:
                ended.append(self._end(i, "error"))
            elif new[0] == self._eos_id:
                ended.append(self._end(i, "stop"))
            elif self._frame == row.request.max_frames:
                ended.append(self._end(i, "length"))
            else:
                self._codes[i].append(new)
                keep.append(i)
        if ended:
            self.select(keep)
            codes = codes[keep]
        looping = self._find_loops(codes[:, 0])
        if looping:
            ended += [self._end(i, "loop") for i in looping]
            keep = [i for i in range(len(self.rows)) if i not in looping]
            self.select(keep)
            codes = codes[keep]
        if self.rows:
            self._step_talker(codes)
        return ended

    def select(self, rows: list[int]) -> None:
        """Keep only these rows."""
        self.rows = [self.rows[i] for i in rows]
        self._codes = [self._codes[i] for i in rows]
        index = torch.tensor(rows, dtype=torch.int64, device=self._device)
        self._cache.select(index)
        self._sampling = self._sampling.select(index)
        self._seeds, self._seen, self._text = self._seeds[index], self._seen[index], self._text[index]
        self._hidden, self._lengths = self._hidden[index], self._lengths[index]
        self._previous, self._text_lens = self._previous[index], self._text_lens[index]
        self._repeats, self._few = self._repeats[index], self._few[index]

    def _find_loops(self, code0: Tensor) -> list[int]:
        """The rows that this frame's first codes [rows] show to be looping."""
        text_is_over = self._text_lens <= self._frame
        self._repeats, self._few = count_loops(code0, self._previous, text_is_over, self._repeats, self._few)
        self._previous = torch.cat([code0[:, None], self._previous[:, :-1]], dim=1)
        return is_loop(self._repeats, self._few, self._loop_limits).nonzero()[:, 0].tolist()

    def progress(self) -> list[tuple[EngineRow, int]]:
        return [(row, len(codes)) for row, codes in zip(self.rows, self._codes, strict=True)]

    def codes_of(self, row: EngineRow) -> Tensor:
        return torch.stack(self._codes[self.rows.index(row)])

    def _step_talker(self, codes: Tensor) -> None:
        self._seen.scatter_(1, codes[:, :1], True)
        text = self._text[:, min(self._frame, self._text.shape[1] - 1)]
        positions = self._lengths + self._frame
        attend = self._cache.step(positions, self._longest + self._frame + 1)
        stack = self._talker.stack
        self._hidden = stack(self._talker.embed_frames(codes) + text, *stack.rotary(positions), attend)
        self._frame += 1

    def _end(self, i: int, finish_reason: str) -> EngineRow:
        row, frames = self.rows[i], self._codes[i]
        metrics = {
            "queue_s": self._started_s - row.ready_at_s,
            "prefill_s": self._prefilled_s - self._started_s,
            "decode_s": time.monotonic() - self._prefilled_s,
        }
        return row.end(torch.stack(frames) if frames else torch.zeros(0, 16, dtype=torch.int64), finish_reason, metrics)


def predict_frame(talker: Talker, hidden: Tensor, code0: Tensor, keys: Tensor, sampling: SamplingTable) -> Tensor:
    """The whole frame of each row from its first code.

    Args:
        hidden: [rows, H], the talker's state that gave `code0`, int64 [rows].
        keys: int32 [rows, 16, 2], the noise keys of this frame.

    Returns:
        int64 [rows, 16].
    """
    predictor = talker.code_predictor
    stack, num_codes = predictor.stack, predictor.config.num_code_groups
    num_rows = len(code0)
    cache = _cache_for(stack, num_rows, capacity=num_codes)
    cos, sin = stack.rotary(torch.arange(num_codes, device=hidden.device))

    first_two = predictor.project(torch.stack([hidden, talker.embed_code0(code0)], dim=1))
    state = stack(first_two.flatten(0, 1), cos[:2].repeat(num_rows, 1), sin[:2].repeat(num_rows, 1),
                  cache.prefill([2] * num_rows))[1::2]  # fmt: skip
    codes = [code0]
    for codebook in range(1, num_codes):
        scores = predictor_scores(predictor.logits(codebook, state), sampling)
        codes.append(sampling.predictor.choose(scores, keys[:, codebook]))
        if codebook < num_codes - 1:
            position = codebook + 1
            attend = cache.step(torch.full_like(code0, position), position + 1)
            angles = (x[position].expand(num_rows, -1) for x in (cos, sin))
            state = stack(predictor.embed(codebook, codes[-1]), *angles, attend)
    return torch.stack(codes, dim=1)


def _cache_for(stack: DecoderStack, num_rows: int, capacity: int) -> DenseKVCache:
    config, weight = stack.config, stack.norm.weight
    return DenseKVCache(
        num_layers=config.num_hidden_layers,
        num_rows=num_rows,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        capacity=capacity,
        device=weight.device,
        dtype=weight.dtype,
    )
