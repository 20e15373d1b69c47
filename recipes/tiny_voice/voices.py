"""Who speaks: nine named speakers, and voices without a name that Base learns to clone.

The variants are those of espeak-ng that a small recogniser understands best (README.md has the scores).
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
        """The name that espeak-ng takes."""
        return f"en-us+{self.variant}"

    @property
    def description(self) -> str:
        """What a voice designer would ask for."""
        tone = "low" if self.pitch < 42 else "high" if self.pitch > 58 else "medium"
        pace = "slowly" if self.rate < 142 else "quickly" if self.rate > 162 else "at a calm pace"
        return f"A {tone} {'female' if self.variant.startswith('f') else 'male'} voice that speaks {pace}."


SPEAKERS = {
    "serena": Voice("f2", 50, 150),
    "vivian": Voice("f5", 50, 150),
    "uncle_fu": Voice("klatt4", 30, 140),
    "ryan": Voice("m2", 50, 150),
    "aiden": Voice("adam", 50, 150),
    "ono_anna": Voice("f3", 65, 150),
    "sohee": Voice("f1", 45, 145),
    "eric": Voice("m6", 50, 145),
    "dylan": Voice("klatt2", 55, 155),
}
"""The names of the released CustomVoice models."""

VARIANTS = ("f1", "f2", "f3", "f4", "f5", "m2", "m5", "m6", "adam", "klatt2", "klatt4", "victor")

PACES = {"Speak slowly.": 0.85, "Speak quickly.": 1.2}
"""Instructions that the named speakers follow, and what they do to the rate."""


def nameless_voices(count: int, seed: int = 0) -> list[Voice]:
    """Voices that differ in variant, pitch and rate."""
    rng = random.Random(seed)
    return [Voice(rng.choice(VARIANTS), rng.randint(25, 75), rng.randint(135, 170)) for _ in range(count)]
