"""Is this machine, and is this checkpoint, fit for a run? `check_machine`, `check_checkpoint`, `check_parity`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found, a line of `tts-batch doctor`. A "problem" would stop a run; a "note" is worth knowing."""

    level: Literal["ok", "note", "problem"]
    subject: str
    detail: str
