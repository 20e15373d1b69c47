"""What a user may ask of an export beside its format; each format heeds some of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of all formats, at their defaults."""

    shard_bytes: int = 500_000_000  # of audio in a shard
    hard_link: bool = False  # instead of copies
    decode: bool = False  # what the format does not take becomes wav of 16 bits
    ref_audio: Path | None = None  # the reference of all rows; None: one of the clips
