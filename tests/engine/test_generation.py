"""generate: all requests, once each, in completion order, and an engine that is free again whatever ends it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.asking import ask
from tests.engine.scripted import ScriptedRunner, scripted_engine
from tts_batch.engine.errors import DuplicateRequest, EngineError
from tts_batch.engine.generation import generate
from tts_batch.engine.request import SpeechRequest


def test_requests_are_pulled_as_the_engine_wants_them() -> None:
    pulled = 0

    def requests() -> Iterator[SpeechRequest]:
        nonlocal pulled
        for i in range(200):
            pulled += 1
            yield ask(str(i), max_frames=1)

    with scripted_engine(ScriptedRunner(4)) as engine:
        returned = 0
        for _ in generate(engine, requests()):
            returned += 1
            # at most: 4 that wait, 4 that decode, a queue of 8 and one on its way, and 8 of a `step`
            assert pulled - returned <= 4 + 4 + 8 + 1 + 8
    assert (pulled, returned) == (200, 200)


def test_nothing_asked_nothing_made() -> None:
    with scripted_engine() as engine:
        assert list(generate(engine, [])) == []


def test_closing_early_frees_the_engine_for_the_next() -> None:
    with scripted_engine(ScriptedRunner(4)) as engine:
        results = generate(engine, (ask(str(i), max_frames=20) for i in range(1_000_000)))
        next(results)
        results.close()
        assert engine.num_wanted == 4
        assert {r.finish_reason for r in generate(engine, [ask(str(i)) for i in range(9)])} == {"stop"}


def test_what_the_requests_raise_is_raised() -> None:
    def requests() -> Iterator[SpeechRequest]:
        yield ask("a")
        raise OSError("the table is gone")

    with scripted_engine() as engine, pytest.raises(OSError, match="the table is gone"):
        list(generate(engine, requests()))


def test_an_id_twice_in_flight_is_raised() -> None:
    with scripted_engine() as engine, pytest.raises(DuplicateRequest):
        list(generate(engine, [ask("a"), ask("a")]))


def test_a_dead_engine_is_raised() -> None:
    def fail(runner: ScriptedRunner) -> None:
        raise RuntimeError("device lost")

    with scripted_engine(ScriptedRunner(on_step=fail)) as engine, pytest.raises(EngineError, match="device lost"):
        list(generate(engine, [ask("a")]))
