"""What counts as a clip."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tts_batch.engine.request import SpeechResult
from tts_batch.run.checks import find_fault, measure

GOOD = SpeechResult("a", np.full(100, 0.1, np.float32), 24_000, None, 5, "stop", True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"num_frames": 10}, None),  # the end token came right after the last frame of the budget
        ({"num_frames": 10, "eos": False}, "codec_budget_exhausted"),
        ({"num_frames": 11}, "engine_error"),
        ({"finish_reason": "length"}, "codec_budget_exhausted"),
        ({"finish_reason": "loop"}, "repetitive_generation"),
        ({"finish_reason": "cancelled"}, "cancelled"),
        ({"finish_reason": "done"}, "engine_error"),
        ({"finish_reason": "error", "reason": "ref_silent", "error": "It is silent."}, "ref_silent"),
        ({"finish_reason": "error", "reason": "no such reason"}, "engine_error"),
        ({"audio": None}, "empty_audio"),
        ({"audio": np.zeros(0, np.float32)}, "empty_audio"),
        ({"audio": np.zeros(100, np.float32)}, "silent_output"),
        ({"audio": np.full(100, 0.0009, np.float32)}, "silent_output"),
        ({"audio": np.full(100, 0.0011, np.float32)}, None),
        ({"audio": np.array([0.5, np.nan], np.float32)}, "non_finite"),
        ({"audio": np.array([0.5, np.inf], np.float32)}, "non_finite"),
        ({"audio": np.zeros((2, 100), np.float32)}, "engine_error"),
    ],
)
def test_find_fault(change: dict[str, object], reason: str | None) -> None:
    failure = find_fault(replace(GOOD, **change), max_frames=10)
    assert (failure.reason if failure else None) == reason
    assert failure is None or failure.message.endswith(".")


def test_measure() -> None:
    levels = measure(np.array([0.5, -0.5, 1.4, -1.0], np.float32))
    assert levels.peak == pytest.approx(1.4)
    assert levels.clipped_samples == 1
    assert levels.rms_dbfs == pytest.approx(20 * np.log10(np.sqrt((0.25 + 0.25 + 1.96 + 1) / 4)), abs=1e-5)
    assert measure(np.zeros(3, np.float32)).rms_dbfs == pytest.approx(-200)
