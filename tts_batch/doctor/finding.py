"""Finding: one line of `tts-batch doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. A "problem" would stop a run; a "note" is worth knowing."""

    level: Literal["ok", "note", "problem"]
    subject: str
    detail: str
