"""TtsBatch: speech for the rows of a Ray dataset, `dataset.map_batches(TtsBatch, …)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tts_batch.api import Synthesizer
from tts_batch.choices import Format
from tts_batch.dataset.columns import COLUMNS
from tts_batch.errors import UsageError
from tts_batch.store.clips import check_format, encode_clip

MADE = ("audio", "sample_rate", "duration_s", "seed", "reason", "message")
"""The columns that are added to a batch."""


class TtsBatch:
    """Holds one engine and makes the clips of whole batches, decoded together.

        dataset.map_batches(
            TtsBatch,
            fn_constructor_kwargs={"model": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice"},
            concurrency=4, num_gpus=1, batch_size=2048,
        )

    Every column of a batch that a table may have is read, all others are passed on. Added are `audio` (the bytes of a
    file), `sample_rate`, `duration_s`, `seed`, and for a row that failed `reason` and `message`, with empty audio.

    A batch is finished before the next one begins, so that towards its end fewer and fewer rows are decoded together:
    take batches of several times the engine's rows. A run folder, with resume and journal, has `tts_batch.synth` with
    `launcher="ray"`.
    """

    def __init__(
        self, model: str | None = None, *, columns: Mapping[str, str] | None = None, format: Format = "wav",
        **options: Any,
    ) -> None:  # fmt: skip
        """`columns`: name → column of the dataset, as `map` of a run; `options`: those of Synthesizer.

        Raises UsageError for an invalid option, CannotContinueError when the model cannot open.
        """
        check_format(format)
        self._format, self._columns = format, dict(columns or {})
        self._synthesizer = Synthesizer(model, **options)

    def __call__(self, batch: dict[str, np.ndarray[Any, Any]]) -> dict[str, Any]:
        """Return the batch with its clips, in the order of its rows. Raises UsageError for a column in the way."""
        taken = [name for name in MADE if name in batch]
        if taken:
            raise UsageError(f"The batch has a column {taken[0]!r} already: rename or drop it.")
        clips = list(self._synthesizer.stream(_rows(batch, self._columns), ordered=True))
        failures = [clip.failure for clip in clips]
        return {
            **batch,
            "audio": np.array([self._encode(clip.audio, clip.sample_rate) for clip in clips], object),
            "sample_rate": np.array([clip.sample_rate for clip in clips], np.int32),
            "duration_s": np.array([clip.duration_s for clip in clips], np.float64),
            "seed": np.array([-1 if clip.seed is None else clip.seed for clip in clips], np.int64),
            "reason": np.array(["" if failure is None else failure.reason for failure in failures], object),
            "message": np.array(["" if failure is None else failure.message for failure in failures], object),
        }

    def _encode(self, audio: np.ndarray[Any, np.dtype[np.float32]], sample_rate_hz: int) -> bytes:
        return encode_clip(audio, sample_rate_hz, self._format) if audio.size else b""


def _rows(batch: Mapping[str, Any], columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the rows of a batch, with the columns that a table may have."""
    named = {name: columns.get(name, name) for name in COLUMNS}
    present = {name: batch[column] for name, column in named.items() if column in batch}
    if "text" not in present:
        raise UsageError(f"The batch has no column {named['text']!r}: there are {', '.join(batch)}.")
    return [dict(zip(present, cells, strict=True)) for cells in zip(*map(_cells, present.values()), strict=True)]


def _cells(column: Any) -> list[Any]:
    return list(column.tolist() if isinstance(column, np.ndarray) and column.ndim == 1 else column)
