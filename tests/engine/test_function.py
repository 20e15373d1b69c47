"""FunctionEngine: a function's clips as results, what it does wrong as errors of its requests, aborts at once."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.asking import ask
from tests.engine.scripted import wait_until
from tts_batch.engine import Engine, EngineConfig, EngineError, FunctionEngine, SpeechRequest, generate, open_engine
from tts_batch.engine.errors import DuplicateRequest, EngineConfigError
from tts_batch.engine.request import SpeechResult
from tts_batch.errors import RowError

EXAMPLES = Path(__file__).parents[2] / "examples"


def clip(request: SpeechRequest) -> tuple[np.ndarray, int]:
    return np.full(100 + request.seed, 0.5), 16_000


@contextmanager
def running(speak: Callable[..., Any], batch_size: int | None = None) -> Iterator[FunctionEngine]:
    engine = FunctionEngine(speak, batch_size)
    try:
        yield engine
    finally:
        engine.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "tts-batch-function"]


def results_of(speak: Callable[..., Any], *requests: SpeechRequest) -> dict[str, SpeechResult]:
    with running(speak) as engine:
        return {result.request_id: result for result in generate(engine, requests)}


def test_one_request_a_call() -> None:
    def speak(request: SpeechRequest) -> tuple[np.ndarray, int]:
        return clip(request)

    with running(speak, batch_size=9) as engine:
        assert isinstance(engine, Engine)
        assert engine.num_wanted == 2
        results = list(generate(engine, [ask(str(i), seed=i) for i in range(7)]))
    assert [result.request_id for result in results] == [str(i) for i in range(7)]
    for i, result in enumerate(results):
        assert (result.finish_reason, result.eos, result.sample_rate) == ("stop", True, 16_000)
        assert (result.audio.dtype, result.audio.shape) == (np.float32, (100 + i,))


def test_as_many_requests_a_call_as_there_are() -> None:
    calls: list[int] = []

    def speak(requests: Sequence[SpeechRequest]) -> list[tuple[np.ndarray, int]]:
        calls.append(len(requests))
        return [clip(request) for request in requests]

    with running(speak, batch_size=4) as engine:
        assert engine.num_wanted == 8
        assert len(list(generate(engine, [ask(str(i)) for i in range(30)]))) == 30
        assert engine.num_wanted == 8
    assert sum(calls) == 30
    assert max(calls) <= 4 < len(calls) < 30


def test_the_audio_is_the_caller_s() -> None:
    buffer = np.zeros(8, np.float32)

    def speak(request: SpeechRequest) -> tuple[np.ndarray, int]:
        buffer[:] = request.seed
        return buffer, 16_000

    results = results_of(speak, ask("1", seed=1), ask("2", seed=2))
    assert [results[name].audio[0] for name in "12"] == [1, 2]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ((np.zeros((2, 8)), 16_000), r"shape \(2, 8\); it must be \[samples\]"),
        ((np.zeros(8, np.int16), 16_000), "int16; it must be floats"),
        ((np.zeros(8), 16_000.5), "sample_rate is 16000.5"),
        ((np.zeros(8), 0), "sample_rate is 0"),
        ((np.zeros(8), None), "did not return"),
        (np.zeros(8), "did not return"),
        (None, "did not return"),
    ],
)
def test_what_is_no_clip_is_the_request_s_error(returned: object, message: str) -> None:
    def speak(request: SpeechRequest) -> object:
        return returned if request.request_id == "bad" else clip(request)

    results = results_of(speak, ask("bad"), ask("good"))
    assert (results["bad"].finish_reason, results["bad"].reason) == ("error", "engine_error")
    assert re.search(message, results["bad"].error)
    assert results["good"].reason is None


@pytest.mark.parametrize(("returned", "message"), [([], "0 clips for 2 requests"), (7, "a int for 2 requests")])
def test_a_call_must_return_a_clip_for_each_request(returned: object, message: str) -> None:
    with running(lambda requests: returned) as engine:
        for name in "ab":
            engine.add_request(ask(name))
        results = list(engine.step(10.0))
    assert [result.reason for result in results] == ["engine_error"] * 2
    assert message in results[0].error


@pytest.mark.parametrize(
    ("error", "reason", "message"),
    [
        (ValueError("too long"), "engine_error", r"speak raised ValueError: too long"),
        (RowError("text_too_long", "at most 9 words."), "text_too_long", r"^at most 9 words\.$"),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA"), "out_of_memory", "ran out of memory"),
    ],
)
def test_what_it_raises_is_the_reason_of_the_requests_that_it_had(error: Exception, reason: str, message: str) -> None:
    def speak(request: SpeechRequest) -> tuple[np.ndarray, int]:
        if request.request_id == "bad":
            raise error
        return clip(request)

    results = results_of(speak, ask("bad"), ask("good"))
    assert results["bad"].reason == reason
    assert results["good"].reason is None
    assert re.search(message, results["bad"].error)


def test_aborts_end_at_once_and_the_id_is_free_again() -> None:
    hold, calls = threading.Event(), []

    def speak(request: SpeechRequest) -> tuple[np.ndarray, int]:
        calls.append(request.request_id)
        assert hold.wait(20)
        return clip(request)

    with running(speak) as engine:
        engine.add_request(ask("running", seed=1))
        engine.add_request(ask("queued"))
        wait_until(lambda: calls == ["running"])
        with pytest.raises(DuplicateRequest):
            engine.add_request(ask("running"))
        for name in ("running", "queued", "unknown"):
            engine.abort_request(name)
        assert {(r.request_id, r.finish_reason) for r in engine.step(10.0)} == {
            ("running", "cancelled"),
            ("queued", "cancelled"),
        }
        engine.add_request(ask("running", seed=2))
        hold.set()
        (result,) = engine.step(10.0)
        assert result.audio.size == 102
        assert calls == ["running", "running"]


def test_a_function_that_ends_its_thread_ends_the_engine() -> None:
    def speak(request: SpeechRequest) -> None:
        sys.exit("no licence")

    with running(speak) as engine:
        engine.add_request(ask("a"))
        with pytest.raises(EngineError, match="raised SystemExit: no licence"):
            engine.step(10.0)
        with pytest.raises(EngineError, match="no licence"):
            engine.add_request(ask("b"))
        assert engine.num_wanted == 0


@pytest.mark.parametrize("speak", [lambda text: None, lambda requests, voice: None, lambda: None, len])
def test_other_functions_are_refused(speak: Callable[..., Any]) -> None:
    with pytest.raises(EngineConfigError, match="must have one parameter, called `requests` or `request`"):
        FunctionEngine(speak)


def test_the_example_is_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len((EXAMPLES / "own_engine.py").read_text().splitlines()) <= 20
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", list(sys.path))
    engine = open_engine("own_engine:speak", EngineConfig(model=""))
    (result,) = generate(engine, [ask(text="Three more words")])
    engine.close()
    assert (result.finish_reason, result.sample_rate) == ("stop", 16_000)
    assert 0.9 < result.audio.size / 16_000 < 1.1
    assert 0.2 < np.abs(result.audio).max() < 0.4


def test_it_loads_no_torch() -> None:
    program = "import sys, tts_batch.engine.registry, tts_batch.engine.function; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
