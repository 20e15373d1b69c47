"""The voices: nine named speakers, and unnamed voices that Base learns to clone.

The variants are those of espeak-ng that a small recogniser understands best (README.md has the scores); the speakers
are the nine of them, four female, that a speaker encoder tells apart best.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Voice:
    """An espeak-ng voice with its settings. `rate` is in words a minute."""

    variant: str
    pitch: int
    rate: int

    @property
    def espeak(self) -> str:
        """The name for espeak-ng."""
        return f"en-us+{self.variant}"

    @property
    def description(self) -> str:
        """A description for voice design."""
        tone = "low" if self.pitch < 42 else "high" if self.pitch > 58 else "medium"
        pace = "slowly" if self.rate < 140 else "quickly" if self.rate > 155 else "at a calm pace"
        return f"A {tone} {'female' if self.variant.startswith('f') else 'male'} voice that speaks {pace}."


SPEAKERS = {
    "serena": Voice("f2", 20, 140),
    "vivian": Voice("f5", 75, 140),
    "uncle_fu": Voice("m2", 20, 140),
    "ryan": Voice("klatt4", 75, 140),
    "aiden": Voice("adam", 20, 140),
    "ono_anna": Voice("f3", 45, 140),
    "sohee": Voice("f5", 45, 140),
    "eric": Voice("victor", 45, 140),
    "dylan": Voice("klatt2", 45, 140),
}
"""The names of the released CustomVoice models."""

VARIANTS = ("f1", "f2", "f3", "f5", "m2", "m6", "adam", "klatt2", "klatt4", "victor")

PACES = {"Speak slowly.": 0.85, "Speak quickly.": 1.2}
"""Instructions that the named speakers follow, and what they do to the rate."""


def nameless_voices(count: int, seed: int = 0) -> list[Voice]:
    """Voices that differ in variant, pitch and rate."""
    rng = random.Random(seed)
    return [Voice(rng.choice(VARIANTS), rng.randint(20, 80), rng.randint(130, 165)) for _ in range(count)]
