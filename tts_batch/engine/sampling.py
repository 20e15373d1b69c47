"""From logits to codes: the reference's pipeline in its order, with every parameter a tensor of the row.

    talker:          repetition penalty -> EOS ban -> suppression -> temperature -> top-k -> top-p -> choice
    code predictor:  temperature -> top-k -> top-p -> choice

The choice is the largest score, for sampled rows after adding Gumbel noise: exactly a draw from their softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tts_batch.engine.noise import gumbel
from tts_batch.engine.request import SamplingParams

NUM_SUPPRESSED = 1_024  # the talker's last ids are control tokens; of these only the EOS may be sampled


@dataclass(frozen=True, slots=True)
class Warp:
    """Temperature, top-k and top-p of each row. A greedy row warps nothing, so that no tie is made by rounding."""

    do_sample: Tensor  # bool [rows]
    temperature: Tensor  # float32 [rows]
    top_k: Tensor  # int64 [rows]; 0: off
    top_p: Tensor  # float32 [rows]; 1: off
    # Of all rows, on the host: what need not be computed at all.
    any_sampled: bool
    max_top_k: int
    any_top_p: bool

    @classmethod
    def build(cls, rows: Sequence[tuple[bool, float, int, float]], device: torch.device | str) -> Warp:
        """From (do_sample, temperature, top_k, top_p) of each row."""
        sampled = [row if row[0] else (False, 1.0, 0, 1.0) for row in rows]
        do_sample, temperature, top_k, top_p = zip(*sampled, strict=True)
        return cls(
            do_sample=torch.tensor(do_sample, dtype=torch.bool, device=device),
            temperature=torch.tensor(temperature, dtype=torch.float32, device=device),
            top_k=torch.tensor(top_k, dtype=torch.int64, device=device),
            top_p=torch.tensor(top_p, dtype=torch.float32, device=device),
            any_sampled=any(do_sample),
            max_top_k=max(top_k),
            any_top_p=min(top_p) < 1.0,
        )

    def select(self, rows: Tensor) -> Warp:
        """The warp of some of the rows: int64 [kept]."""
        return replace(
            self,
            do_sample=self.do_sample[rows],
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
        )

    def apply(self, scores: Tensor) -> Tensor:
        """float32 [rows, vocab] -> the same, -inf where top-k or top-p cuts."""
        scores = scores / self.temperature[:, None]
        if self.max_top_k > 0:
            scores = _cut_top_k(scores, self.top_k, min(self.max_top_k, scores.shape[-1]))
        if self.any_top_p:
            scores = _cut_top_p(scores, self.top_p)
        return scores

    def choose(self, scores: Tensor, keys: Tensor) -> Tensor:
        """float32 [rows, vocab], int32 noise keys [rows, 2] -> int64 [rows]."""
        if self.any_sampled:
            noise = gumbel(keys, scores.shape[-1])
            scores = torch.where(self.do_sample[:, None], scores + noise, scores)
        return scores.argmax(dim=-1)


@dataclass(frozen=True, slots=True)
class SamplingTable:
    """The sampling parameters of a batch, row by row."""

    talker: Warp
    predictor: Warp
    repetition_penalty: Tensor  # float32 [rows]
    min_new_tokens: Tensor  # int64 [rows]

    @classmethod
    def build(cls, params: Sequence[SamplingParams], device: torch.device | str) -> SamplingTable:
        return cls(
            talker=Warp.build([(p.do_sample, p.temperature, p.top_k, p.top_p) for p in params], device),
            predictor=Warp.build(
                [(p.subtalker_dosample, p.subtalker_temperature, p.subtalker_top_k, p.subtalker_top_p) for p in params],
                device,
            ),
            repetition_penalty=torch.tensor([p.repetition_penalty for p in params], dtype=torch.float32, device=device),
            min_new_tokens=torch.tensor([p.min_new_tokens for p in params], dtype=torch.int64, device=device),
        )

    def select(self, rows: Tensor) -> SamplingTable:
        """The parameters of some of the rows: int64 [kept]."""
        return SamplingTable(
            self.talker.select(rows),
            self.predictor.select(rows),
            self.repetition_penalty[rows],
            self.min_new_tokens[rows],
        )


def suppressed_ids(vocab: int, eos_id: int, device: torch.device | str) -> Tensor:
    """Which of the talker's ids are never sampled: bool [vocab]."""
    suppressed = torch.zeros(vocab, dtype=torch.bool, device=device)
    suppressed[vocab - NUM_SUPPRESSED :] = True
    suppressed[eos_id] = False
    return suppressed


def talker_scores(
    logits: Tensor, seen: Tensor, num_generated: Tensor, suppressed: Tensor, eos_id: int, table: SamplingTable
) -> Tensor:
    """Scores of the next first code.

    Args:
        logits: [rows, vocab], any float dtype.
        seen: bool [rows, vocab], the first codes this row has generated (never those of its prompt).
        num_generated: int64 [rows], how many it has generated; the EOS is banned below min_new_tokens.
        suppressed: bool [vocab], see `suppressed_ids`.

    Returns:
        float32 [rows, vocab], -inf where nothing may be chosen.
    """
    scores = logits.float()
    penalty = table.repetition_penalty[:, None]
    scores = torch.where(seen, torch.where(scores > 0, scores / penalty, scores * penalty), scores)
    scores = scores.masked_fill(suppressed, -torch.inf)
    scores[:, eos_id].masked_fill_(num_generated < table.min_new_tokens, -torch.inf)
    return table.talker.apply(scores)


def predictor_scores(logits: Tensor, table: SamplingTable) -> Tensor:
    """Scores of the next of the other 15 codes: [rows, vocab] -> float32 [rows, vocab]."""
    return table.predictor.apply(logits.float())


def _cut_top_k(scores: Tensor, top_k: Tensor, max_top_k: int) -> Tensor:
    # Scores equal to the k-th are kept, as the reference keeps them.
    largest = scores.topk(max_top_k, dim=-1).values
    rank = (top_k - 1).clamp(0, max_top_k - 1)
    threshold = largest.gather(-1, rank[:, None])
    return scores.masked_fill((scores < threshold) & (top_k > 0)[:, None], -torch.inf)


def _cut_top_p(scores: Tensor, top_p: Tensor) -> Tensor:
    # Ascending, as the reference sums: what lies below 1 - top_p goes, the largest score never.
    ordered, order = scores.sort(dim=-1)
    cut = ordered.softmax(dim=-1).cumsum(dim=-1) <= (1.0 - top_p)[:, None]
    cut[:, -1] = False
    cut &= (top_p < 1.0)[:, None]
    return scores.masked_fill(torch.zeros_like(cut).scatter(-1, order, cut), -torch.inf)
