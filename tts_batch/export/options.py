"""The options of an export beside its format; each format supports some of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The options of all formats, with their defaults."""

    shard_bytes: int = 500_000_000  # of audio in a shard
    hard_link: bool = False  # instead of copies
    decode: bool = False  # clips that the format does not take are written as 16-bit wav
    ref_audio: Path | None = None  # the reference of all rows; None: one of the clips
