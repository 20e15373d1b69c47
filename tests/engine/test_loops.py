"""Loops: what is called one, and that the detectors let speech pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_batch.engine.loops import DEFAULT_LIMITS, NUM_LAGS, LoopLimits, count_loops, is_loop

GOLDEN = Path(__file__).parents[1] / "golden"


def first_loop(codes: Sequence[int], limits: LoopLimits = DEFAULT_LIMITS, text_len: int = 0) -> int | None:
    """How many frames are kept of a take, or None if it does not loop."""
    previous = torch.full((1, NUM_LAGS), -1)
    repeats, few = torch.zeros(1, NUM_LAGS, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    for frame, code in enumerate(codes):
        code0 = torch.tensor([code])
        repeats, few = count_loops(code0, previous, torch.tensor([frame >= text_len]), repeats, few)
        previous = torch.cat([code0[:, None], previous[:, :-1]], dim=1)
        if is_loop(repeats, few, limits):
            return frame + 1
    return None


@pytest.mark.parametrize("period", [1, 2, 7, 16])
def test_an_n_gram_ends_the_take_after_six_seconds_of_repeating(period: int) -> None:
    speech = list(range(100, 140))
    looped = speech + [i % period for i in range(300)]
    assert first_loop(looped, text_len=10_000) == len(speech) + period + 75


def test_a_longer_period_and_a_broken_run_are_no_n_gram() -> None:
    assert first_loop([i % 17 for i in range(400)]) is None
    assert first_loop([5] * 70 + [6] + [5] * 70, text_len=10_000) is None


def test_few_codes_in_any_order_are_a_loop_once_the_text_is_over() -> None:
    hum = np.random.default_rng(0).integers(0, 4, 400).tolist()
    assert first_loop(hum, text_len=10_000) is None
    assert first_loop(hum, text_len=100) == 100 + 75
    # A stray code now and then does not hide it; one frame in five that is new does.
    stray = [1_000 + i if i % 10 == 0 else code for i, code in enumerate(hum)]
    assert first_loop(stray) is not None
    often = [1_000 + i if i % 5 == 0 else code for i, code in enumerate(hum)]
    assert first_loop(often) is None


def test_each_detector_can_be_turned_off() -> None:
    same = [3] * 400
    assert first_loop(same, LoopLimits(0, 0)) is None
    assert first_loop(same, LoopLimits(50, 0)) == 51
    assert first_loop(same, LoopLimits(0, 60)) == 61


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 2_047), min_size=76, max_size=200))
def test_what_is_called_a_loop_repeats(codes: list[int]) -> None:
    kept = first_loop(codes, text_len=10_000)
    if kept is not None:
        tail = codes[:kept]
        assert any(tail[-75:] == tail[-75 - lag : -lag] for lag in range(1, NUM_LAGS + 1))


def test_the_official_takes_pass() -> None:
    checked = 0
    for path in GOLDEN.glob("*.npz"):
        with np.load(path) as arrays:
            for name in arrays.files:
                if name.startswith("codes_"):
                    checked += 1
                    assert first_loop(arrays[name][:, 0].tolist()) is None, f"{path.name} {name}"
    assert checked > 50
