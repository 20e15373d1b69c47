"""The Code2Wav stage: its interface, and the result of a row."""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tts_batch.engine.request import SAMPLE_RATE_HZ, SpeechResult
from tts_batch.engine.results import error_result
from tts_batch.engine.runner import EngineRow

NO_MEMORY_FOR_AUDIO = "the device has too little memory to turn this row's codes into audio."


class Code2Wav(Protocol):
    """Turns decoded rows into results. Used from one thread; a row leaves it once, by `poll`, `drop` or `clear`."""

    @property
    def busy(self) -> bool:
        """Whether any decoded row is unfinished."""

    def submit(self, row: EngineRow) -> None:
        """Take a row with all its codes."""

    def poll(self, *, drain: bool) -> list[SpeechResult]:
        """Start the batches that are due (with `drain`: all), and return the results of finished rows."""

    def progress(self) -> list[tuple[str, int]]:
        """Every unfinished row, and a number that changes when it makes progress."""

    def drop(self, request_id: str) -> bool:
        """Drop a row in any state; False if it is unknown."""

    def clear(self) -> None:
        """Drop every row."""


def clip_result(
    row: EngineRow, codes: NDArray[np.int16], audio: NDArray[np.float32] | None, submitted_at_s: float
) -> SpeechResult:
    """A row's codes [num_frames, 16] and audio [num_frames * 1920], both of the caller's own; None: memory ran out."""
    if audio is None:
        return error_result(row.request_id, "out_of_memory", NO_MEMORY_FOR_AUDIO)
    return SpeechResult(
        request_id=row.request_id,
        audio=audio,
        sample_rate=SAMPLE_RATE_HZ,
        codes=codes,
        num_frames=len(codes),
        finish_reason=row.finish_reason,
        eos=row.eos,
        effective=row.prompt.effective,
        metrics={**row.metrics, "code2wav_s": time.monotonic() - submitted_at_s},
    )
