"""Preparer: what no device could compute with is its own request's failure, and says which number is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.engine.asking import ask
from tts_batch.engine.generation import generate
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.request import SamplingParams

WRONG = [
    ("bad_seed", "seed", 2**63),
    ("bad_seed", "seed", -1),
    ("bad_row", "max_frames", -1),
    ("bad_row", "temperature", 0.0),
    ("bad_row", "subtalker_temperature", math.nan),
    ("bad_row", "repetition_penalty", math.inf),
    ("bad_row", "top_k", 2**31),
    ("bad_row", "subtalker_top_k", -1),
    ("bad_row", "min_new_tokens", 2**40),
]


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_a_wrong_number_fails_its_own_row(open_tiny: Callable[..., NativeEngine], runner: str) -> None:
    requests = [ask("good", seed=2**63 - 1)]
    for i, (_, name, value) in enumerate(WRONG):
        if name in ("seed", "max_frames"):
            requests.append(ask(str(i), **{name: value}))
        else:
            requests.append(ask(str(i), sampling=replace(SamplingParams(), **{name: value})))
    results = {r.request_id: r for r in generate(open_tiny(runner=runner), requests)}
    assert results.pop("good").finish_reason in ("stop", "length")
    for i, (reason, name, value) in enumerate(WRONG):
        assert results[str(i)].reason == reason
        assert f"{name} " in results[str(i)].error
        assert str(value) in results[str(i)].error
