"""Runner v2 against the official package: greedy codes and waves of every prompt mode, decoded side by side."""

from __future__ import annotations

import pytest

from tests.golden.cases import CHECKPOINTS
from tests.golden.official import assert_official, greedy_cases, requests
from tts_batch.engine.generation import generate
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.request import EngineConfig
from tts_batch.model.tiny import build_tiny


@pytest.mark.parametrize("prefix", CHECKPOINTS)
def test_all_modes_of_a_checkpoint_in_one_batch(prefix: str) -> None:
    folder = str(build_tiny("tiny-random", *CHECKPOINTS[prefix]))
    given = [request for name in greedy_cases(prefix) for request in requests(name)]
    engine = NativeEngine(EngineConfig(model=folder, device="cpu", runner="v2"))
    results = list(generate(engine, given))
    engine.close()
    assert len(results) == len(given)
    for result in results:
        assert_official(result)
