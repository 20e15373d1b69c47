"""Speaker cells: the released presets, and one spelling for each."""

from __future__ import annotations

from functools import lru_cache

PRESET_SPEAKERS: frozenset[str] = frozenset(
    ("aiden", "dylan", "eric", "ono_anna", "ryan", "serena", "sohee", "uncle_fu", "vivian")
)
"""The speakers of the released CustomVoice checkpoints. A checkpoint's own list decides what a row may name."""


@lru_cache(maxsize=1024)
def normalise_speaker(value: str) -> str:
    """Lower case, as the model looks speakers up; "Uncle Fu" and "uncle-fu" are uncle_fu."""
    return value.strip().lower().replace(" ", "_").replace("-", "_")
