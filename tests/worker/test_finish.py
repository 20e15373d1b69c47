"""What becomes of an engine's results: a clip, another attempt, or a failure; and what is kept of failed attempts."""

from __future__ import annotations

import numpy as np
import pytest

from tts_batch.worker.finish import describe_codes


def codes(first: list[int]) -> np.ndarray:
    return np.array(first)[:, None].repeat(16, axis=1)


def test_repetition_is_described() -> None:
    described = describe_codes(codes([*range(100), *[7, 8, 9] * 20]))
    assert (described["repeated_frames"], described["repeat_lag"]) == (57, 3)
    assert described["first_codes"] == list(range(16))
    assert described["last_codes"] == [7, 8, 9] * 16
    assert described["distinct_codes"] == 100


@pytest.mark.parametrize(("first", "run", "lag"), [([5], 0, 0), ([5, 5], 1, 1), ([1, 2, 3], 0, 0), ([4] * 40, 39, 1)])
def test_short_takes(first: list[int], run: int, lag: int) -> None:
    described = describe_codes(codes(first))
    assert (described["repeated_frames"], described["repeat_lag"]) == (run, lag)


def test_no_codes_say_nothing() -> None:
    assert describe_codes(None) == {}
    assert describe_codes(np.zeros((0, 16), np.int64)) == {}
