"""Clip: the audio of one row, or the reason why it failed. It plays inline in a notebook."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tts_batch.choices import Format
from tts_batch.records import Failure

_FORMATS: dict[str, Format] = {
    "": "wav",
    ".wav": "wav",
    ".flac": "flac",
    ".mp3": "mp3",
    ".opus": "opus",
    ".ogg": "opus",
}


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """The outcome of one row.

    Without a `failure`, `audio` holds float32 mono samples [samples] at `sample_rate` Hz; with one it is empty.

        clip = voice.speak("Hello.", speaker="ryan")
        clip.save("hello.wav")
    """

    id: str
    text: str
    audio: NDArray[np.float32]
    sample_rate: int
    seed: int | None = None  # None: the row failed before a seed was drawn
    num_frames: int = 0
    effective: Mapping[str, str] = field(default_factory=dict)  # language, speaker, instruct really applied
    failure: Failure | None = None
    row_index: int = 0  # position among the rows, from 0

    @property
    def duration_s(self) -> float:
        """Length of the audio in seconds."""
        return self.audio.size / self.sample_rate

    def save(self, path: str | PathLike[str]) -> Path:
        """Write a mono file and return its path: 16-bit wav, or what the suffix says of .flac, .mp3, .opus and .ogg.

        Raises ValueError for another suffix and for a clip that failed, UsageError where libsndfile lacks the format.
        """
        from tts_batch.store.clips import check_format, encode_clip

        if self.failure is not None:
            raise ValueError(f"Clip {self.id!r} has no audio: {self.failure.message}")
        path = Path(path)
        if (name := _FORMATS.get(path.suffix.lower())) is None:
            raise ValueError(
                f"{path.name} ends in {path.suffix!r}: a clip is saved as {', '.join(filter(None, _FORMATS))}."
            )
        check_format(name)
        path.write_bytes(encode_clip(self.audio, self.sample_rate, name))
        return path

    def __repr__(self) -> str:
        outcome = f"{self.duration_s:.2f} s" if self.failure is None else self.failure.reason
        return f"Clip({self.id!r}, {outcome})"

    def _repr_html_(self) -> str:
        """The text with an inline player under it, for notebooks."""
        from tts_batch.store.clips import encode_wav

        if self.failure is not None:
            outcome = f"<b>{self.failure.reason}</b>: {html.escape(self.failure.message)}"
        else:
            encoded = base64.b64encode(encode_wav(self.audio, self.sample_rate)).decode("ascii")
            outcome = f'<audio controls src="data:audio/wav;base64,{encoded}"></audio>'
        return f"<div>{html.escape(self.text)}<br>{outcome}</div>"
