"""Runner v1 against the official package: greedy codes and waves in every prompt mode, alone and in batches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.golden.cases import CHECKPOINTS, GREEDY_CASES
from tests.golden.official import assert_official, checkpoint_of, greedy_cases, requests
from tts_batch.engine.generation import generate
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.request import EngineConfig
from tts_batch.model.tiny import build_tiny

# Its references were encoded in one padded batch, which ours never are: the package's codes are given instead.
PADDED_TOGETHER = "base_icl_batch_refs_24k"


@pytest.fixture(scope="module")
def engines() -> Iterator[dict[tuple[str, str], NativeEngine]]:
    engines = {
        checkpoint: NativeEngine(
            EngineConfig(model=str(build_tiny("tiny-random", *checkpoint)), device="cpu", runner="v1")
        )
        for checkpoint in CHECKPOINTS.values()
    }
    yield engines
    for engine in engines.values():
        engine.close()


@pytest.mark.parametrize("name", GREEDY_CASES)
def test_as_the_official_package_was_asked(engines: dict[tuple[str, str], NativeEngine], name: str) -> None:
    """From the clips' files on: decoded, resampled, encoded, and trimmed from what is heard."""
    given = requests(name, encoded=name == PADDED_TOGETHER)
    results = list(generate(engines[checkpoint_of(name)], given))
    assert len(results) == len(given)
    for result in results:
        assert_official(result)


@pytest.mark.parametrize("prefix", CHECKPOINTS)
def test_all_modes_of_a_checkpoint_in_one_batch(engines: dict[tuple[str, str], NativeEngine], prefix: str) -> None:
    given = [request for name in greedy_cases(prefix) for request in requests(name)]
    results = list(generate(engines[CHECKPOINTS[prefix]], given))
    assert len(results) == len(given)
    for result in results:
        assert_official(result)
