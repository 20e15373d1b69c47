"""A row under way in a worker: its pieces, their attempts and seeds, and what is kept of those that failed."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts_batch.engine.request import SamplingParams, SpeechRequest, SpeechResult
from tts_batch.errors import Reason
from tts_batch.ipc.channel import Message
from tts_batch.records import Failure
from tts_batch.run.references import reference_from
from tts_batch.worker.pieces import of_piece

NEW_DRAW_HELPS: tuple[Reason, ...] = (
    "codec_budget_exhausted",
    "repetitive_generation",
    "empty_audio",
    "silent_output",
    "long_silence",
    "noise_output",
    "non_finite",
    "ref_leak",
    "too_long_for_text",
    "too_short_for_text",
)
"""Reasons that lie in what was drawn: the same seed would fail again. After others a retry takes the same seed."""

FIRST_CODES, LAST_CODES = 16, 48
MAX_LAG = 16
_DEVICE_IS_BROKEN = re.compile(r"\b(CUDA|HIP|cuBLAS|cuDNN|cuFFT) error|device-side assert|\bCU(BLAS|DNN|FFT)_STATUS_")


@dataclass(slots=True, eq=False)
class ActiveRow:
    """A row between its arrival and its end."""

    id: str
    fingerprint: str
    input_digest: str
    tried: list[int]  # seeds of attempts of earlier runs
    pieces: list[ActivePiece] = field(default_factory=list)  # of its text, in order; most often one
    began: float = 0.0  # when the engine first pulled one, by the monotonic clock
    overtime: bool = False  # its time limit is over
    failures: list[dict[str, Any]] = field(default_factory=list)  # one record for each failed attempt
    kept: dict[str, bytes] = field(default_factory=dict)  # audio of failed attempts, when it is wanted

    @classmethod
    def from_message(cls, message: Message) -> ActiveRow:
        row = cls(message["id"], message["fingerprint"], message["input_digest"], message["tried"])
        sampling = SamplingParams(**message["sampling"])
        reference = reference_from(message["reference"])
        for piece in message["pieces"]:
            fields, seeds = piece["request"], piece["seeds"]
            request = SpeechRequest(**fields, seed=seeds[0], sampling=sampling, reference=reference)
            row.pieces.append(ActivePiece(row, len(row.pieces), request, piece["expected_s"], seeds))
        return row

    @property
    def is_split(self) -> bool:
        return len(self.pieces) > 1

    @property
    def is_made(self) -> bool:
        """Whether every piece has a good result."""
        return all(piece.result is not None for piece in self.pieces)

    @property
    def attempt_seeds(self) -> list[int]:
        """Of each attempt, the first piece's: the others' seeds follow from the same attempt."""
        return [*self.tried, *self.pieces[0].seeds[: max(piece.attempts for piece in self.pieces)]]

    @property
    def max_frames(self) -> int:
        return sum(piece.request.max_frames for piece in self.pieces)

    @property
    def expected_s(self) -> float:
        """Of speech, at a normal pace."""
        return sum(piece.expected_s for piece in self.pieces)

    def note_failure(
        self,
        failure: Failure,
        result: SpeechResult | None,
        checks: Mapping[str, float] | None = None,
        piece: ActivePiece | None = None,
    ) -> None:
        """Record a failed attempt with what helps to understand it; `piece`: which one failed, None: all as a whole."""
        of = piece or self.pieces[0]
        record = {"attempt": len(self.tried) + of.attempts, "seed": of.request.seed, **_plain(failure)}
        if piece is not None and self.is_split:
            record["piece"] = piece.number + 1
        if result is not None:
            record |= {"num_frames": int(result.num_frames), "finish_reason": str(result.finish_reason)}
            record |= describe_codes(result.codes) | dict(checks or {})
        self.failures.append(record)


@dataclass(slots=True, eq=False)
class ActivePiece:
    """One request of a row: its whole text, or a piece of one that is split. Each has attempts of its own."""

    row: ActiveRow
    number: int  # from 0
    request: SpeechRequest
    expected_s: float
    seeds: list[int]  # one for each attempt that it may have now
    attempts: int = 0  # begun in this run
    overtime: bool = False  # the engine was told to end it, since its row's time limit is over
    result: SpeechResult | None = None  # when it has passed its checks …
    checks: dict[str, float] = field(default_factory=dict)  # … with these figures

    @property
    def id(self) -> str:
        return self.request.request_id

    @property
    def may_try_again(self) -> bool:
        return self.attempts < len(self.seeds) and not self.row.overtime

    def begin_attempt(self) -> None:
        """Make `request` that of the next attempt."""
        self.row.began = self.row.began or time.monotonic()
        self.request = replace(self.request, seed=self.seeds[self.attempts])
        self.attempts += 1

    def blame(self, failure: Failure) -> Failure:
        """Return `failure` as that of this piece, where the text is split."""
        return of_piece(failure, self.number, len(self.row.pieces)) if self.row.is_split else failure


def _plain(failure: Failure) -> dict[str, str]:
    return {"reason": failure.reason, "message": failure.message}


def describe_codes(codes: NDArray[np.integer] | None) -> dict[str, Any]:
    """Return first and last first-codebook codes of [num_frames, 16] codes, and how much they repeat themselves.

    `repeated_frames` is the longest run of frames that each say what was said `repeat_lag` frames before.
    """
    if codes is None or codes.ndim != 2 or not len(codes):
        return {}
    first = codes[:, 0]
    runs = [(_longest_run(first[lag:] == first[:-lag]), lag) for lag in range(1, min(MAX_LAG, len(first) - 1) + 1)]
    repeated, lag = max(runs, key=lambda run: (run[0], -run[1]), default=(0, 0))
    return {
        "first_codes": first[:FIRST_CODES].tolist(),
        "last_codes": first[-LAST_CODES:].tolist(),
        "distinct_codes": int(np.unique(first).size),
        "repeated_frames": repeated,
        "repeat_lag": lag if repeated else 0,
    }


def _longest_run(true: NDArray[np.bool_]) -> int:
    """Return the length of the longest run of True in [n]."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], true.astype(np.int8), [0]])))
    return int((edges[1::2] - edges[::2]).max(initial=0))


def is_device_broken(result: SpeechResult) -> bool:
    """Say whether an engine's error is its device's: after a device-side assert every later row would fail too."""
    return result.finish_reason == "error" and _DEVICE_IS_BROKEN.search(result.error or "") is not None
