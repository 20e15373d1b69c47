"""Benchmark workloads: requests of fixed seed and length, so that random weights cost as much as trained ones.

A request of N frames has a budget of N and may not end earlier: it ends as "length" with a KV cache of its length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tts_batch.engine.request import SAMPLE_RATE_HZ, Reference, SamplingParams, SpeechRequest

MEAN_FRAMES, MIN_FRAMES, MAX_FRAMES = 52, 12, 200
SPREAD = 0.45  # of the log-normal lengths
FRAMES_PER_TEXT_TOKEN = 3.5  # of English speech: 12.5 frames and about 3.5 tokens a second
REFERENCE_S = (3.0, 6.0)
WORDS = [
    "the", "a", "of", "to", "and", "in", "is", "it", "you", "that", "was", "for", "on", "are", "with", "as", "his",
    "they", "be", "at", "one", "have", "this", "from",
]  # fmt: skip


def with_length(request: SpeechRequest, num_frames: int) -> SpeechRequest:
    """Return the request as one of exactly `num_frames` frames."""
    sampling = replace(request.sampling, min_new_tokens=num_frames + 1)
    return replace(request, max_frames=num_frames, sampling=sampling)


@dataclass(frozen=True, slots=True)
class Workload:
    """A reproducible set of rows."""

    name: str  # "seed-tts" (lengths vary) or "fixed" (52 frames, x-vector only)
    num_rows: int = 1_088
    num_references: int = 666
    x_vector_only: bool = False
    seed: int = 0

    def requests(self, count_tokens: Callable[[str], int]) -> list[SpeechRequest]:
        """The rows, in a fixed order. `count_tokens` is the checkpoint's own tokenizer."""
        generator = np.random.default_rng(self.seed)
        lengths = self._lengths(generator)
        references = [_reference(i, generator) for i in range(self.num_references)]
        words = _Words(count_tokens)
        requests = []
        for i, num_frames in enumerate(lengths):
            text = words.text(generator, round(num_frames / FRAMES_PER_TEXT_TOKEN))
            request = SpeechRequest(
                request_id=f"row{i:06d}",
                text=text,
                task="base",
                seed=int(generator.integers(2**63)),
                max_frames=int(num_frames),
                sampling=SamplingParams(),
                language="english",
                reference=references[i % self.num_references],
                x_vector_only=self.x_vector_only,
            )
            requests.append(with_length(request, int(num_frames)))
        return requests

    def _lengths(self, generator: np.random.Generator) -> NDArray[np.int64]:
        if self.name == "fixed":
            return np.full(self.num_rows, MEAN_FRAMES)
        lengths = np.exp(generator.normal(np.log(MEAN_FRAMES) - SPREAD**2 / 2, SPREAD, self.num_rows))
        return np.clip(np.round(lengths), MIN_FRAMES, MAX_FRAMES).astype(np.int64)


def _reference(index: int, generator: np.random.Generator) -> Reference:
    """A voice-like clip in memory, and a transcript of matching length."""
    seconds = generator.uniform(*REFERENCE_S)

    def load() -> NDArray[np.float32]:
        first = index * 997 % SAMPLE_RATE_HZ
        return _hum()[first : first + round(seconds * SAMPLE_RATE_HZ)].copy()

    return Reference(key=f"voice{index}", load=load, text=" ".join(WORDS[: max(1, int(seconds * 3))]))


@cache
def _hum() -> NDArray[np.float32]:
    t = np.arange(8 * SAMPLE_RATE_HZ) / SAMPLE_RATE_HZ
    wave = sum(np.sin(2 * np.pi * (140 + 20 * np.sin(t)) * k * t + k) / k for k in range(1, 9))
    noise = np.random.default_rng(0).normal(0, 0.01, len(t))
    return (0.15 * wave * (0.3 + np.abs(np.sin(2 * np.pi * 2.1 * t))) + noise).astype(np.float32)


class _Words:
    """Makes texts of a given number of tokens. A word after a space always has the same tokens: count it once."""

    def __init__(self, count_tokens: Callable[[str], int]) -> None:
        alone = count_tokens(WORDS[0])
        self._first = [count_tokens(word) for word in WORDS]
        self._later = [count_tokens(f"{WORDS[0]} {word}") - alone for word in WORDS]

    def text(self, generator: np.random.Generator, num_tokens: int) -> str:
        """Random words, until they make `num_tokens` tokens."""
        words: list[str] = []
        count = 0
        while not words or count < num_tokens:
            index = int(generator.integers(len(WORDS)))
            count += (self._later if words else self._first)[index]
            words.append(WORDS[index])
        return " ".join(words)
