"""What is heard is what its definition says, whatever shortcut it is computed by."""

from __future__ import annotations

import numpy as np
import pytest

from tts_batch.worker.examine import LEAK_RATE_HZ, Tail, flatness

RATE = 24_000
SECOND = LEAK_RATE_HZ  # a second of what is left for the comparison


def slow_noise(samples: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(samples).astype(np.float32)


def at_24_khz(slow: np.ndarray) -> np.ndarray:
    return slow.repeat(RATE // LEAK_RATE_HZ)


@pytest.mark.parametrize("samples", [SECOND, SECOND + 1, 2 * SECOND - 1, 2 * SECOND, 3 * SECOND + 7, 4 * SECOND])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_the_tail_is_found_at_every_place(samples: int, place: str) -> None:
    """Half of the power of white noise is the tail: cos 45° of it is found, and without the tail next to nothing."""
    reference, head = slow_noise(5 * SECOND, 1), slow_noise(samples, 2)
    tail = Tail(at_24_khz(reference), RATE)
    assert tail.correlation(at_24_khz(head), RATE) < 0.35
    start = {"first": 0, "middle": (samples - SECOND) // 2, "last": samples - SECOND}[place]
    head[start : start + SECOND] += reference[-SECOND:]
    assert tail.correlation(at_24_khz(head), RATE) == pytest.approx(np.sqrt(0.5), abs=0.04)
    head[start : start + SECOND] = -reference[-SECOND:]
    assert tail.correlation(at_24_khz(head), RATE) == pytest.approx(1.0, abs=0.02)


def test_what_is_nearly_silent_correlates_with_nothing() -> None:
    reference = slow_noise(2 * SECOND, 1)
    whisper = np.concatenate([0.001 * reference[-SECOND:], np.zeros(SECOND, np.float32), slow_noise(SECOND, 2)])
    tail = Tail(at_24_khz(reference), RATE)
    assert tail.correlation(at_24_khz(whisper[: 2 * SECOND]), RATE) == pytest.approx(1.0, abs=0.02)
    assert tail.correlation(at_24_khz(whisper), RATE) < 0.35
    assert tail.correlation(np.zeros(5 * RATE, np.float32), RATE) == 0.0
    assert Tail(np.zeros(5 * RATE, np.float32), RATE).correlation(at_24_khz(reference), RATE) == 0.0


def test_no_more_is_searched_than_a_reference_and_its_tail() -> None:
    reference = slow_noise(2 * SECOND, 1)
    late = np.concatenate([slow_noise(3 * SECOND, 2), reference[-SECOND:]])
    assert Tail(at_24_khz(reference), RATE).correlation(at_24_khz(late), RATE) < 0.35
    assert Tail(at_24_khz(np.tile(reference, 2)), RATE).correlation(at_24_khz(late), RATE) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_louder_half_of_a_clip_counts(count: int) -> None:
    blocks = np.random.default_rng(0).standard_normal((count, 1_024)) * 0.1 * np.arange(1, count + 1)[:, None]
    louder = blocks[count // 2 :]
    power = np.abs(np.fft.rfft(louder * np.hanning(1_024)))[:, 1:] ** 2
    expected = np.mean(np.exp(np.log(power).mean(axis=1)) / power.mean(axis=1))
    assert flatness(blocks.astype(np.float32).ravel()) == pytest.approx(expected, abs=1e-4)
