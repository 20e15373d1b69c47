"""An engine in another process: the same clips, the same laws, and an end of either process that the other notices."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.engine.asking import GREEDY, ask, hum, voice
from tests.fake_engine import speak
from tts_batch.engine.errors import EngineConfigError, EngineDiedError, EngineError
from tts_batch.engine.isolated import AHEAD, FIRST_AHEAD, IsolatedEngine
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.request import EngineConfig, SpeechRequest, SpeechResult
from tts_batch.model.tiny import build_tiny

FAKE = "tests.fake_engine:create"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Opens fake engines in other processes, and sees that none is left."""
    engines: list[IsolatedEngine] = []

    def open_fake(**settings: object) -> IsolatedEngine:
        monkeypatch.setenv("FAKE_ENGINE", json.dumps(settings))
        engines.append(IsolatedEngine(FAKE, EngineConfig(model="none")))
        return engines[-1]

    yield open_fake
    for engine in engines:
        engine.close()
        assert engine._process.returncode is not None


def clips(results: Iterator[SpeechResult]) -> dict[str, tuple[str, list[float]]]:
    ended = [(r.request_id, (r.finish_reason, [] if r.audio is None else r.audio.tolist())) for r in results]
    assert len(ended) == len(dict(ended)), "a request ended twice"
    return dict(ended)


def test_results_are_those_of_the_engine(fake) -> None:
    asked = [ask(f"row{n}", seed=n, max_frames=40) for n in range(3 * AHEAD)]
    engine = fake()
    assert engine.sample_rate == 24_000
    assert engine.info["runner"] == "fake"
    scattered = [request for one in asked for request in (None, one)]
    assert clips(engine.generate(scattered)) == clips(speak(request) for request in asked)
    assert clips(engine.generate(asked[:3])) == clips(speak(request) for request in asked[:3])


def test_our_own_engine_makes_the_same_clips() -> None:
    config = EngineConfig(model=str(build_tiny("tiny-random", "base")), device="cpu", runner="v2")
    reference = voice("v", load=partial(hum, 1.0))  # a lambda would not get there
    asked = [
        ask(f"row{n}", task="base", speaker=None, reference=reference, max_frames=4, sampling=GREEDY) for n in range(3)
    ]
    here, there = NativeEngine(config), IsolatedEngine("native", config)
    expected = {result.request_id: result for result in here.generate(iter(asked))}
    results = list(there.generate(iter(asked)))
    here.close()
    there.close()
    assert there.info == here.info
    assert sorted(result.request_id for result in results) == sorted(expected)
    for result in results:
        assert result.finish_reason == expected[result.request_id].finish_reason
        np.testing.assert_array_equal(result.codes, expected[result.request_id].codes)
        np.testing.assert_allclose(result.audio, expected[result.request_id].audio, atol=1e-5)
        result.audio[:] = 0.0  # it is the receiver's


def test_an_engine_that_cannot_be_opened_says_so_here() -> None:
    with pytest.raises(EngineConfigError, match="profile 'none'"):
        IsolatedEngine("native", EngineConfig(model=str(build_tiny("tiny-random", "base")), profile="none"))


def test_an_error_of_the_engine_is_raised_here(fake) -> None:
    engine = fake(fail_generate="no such luck")
    with pytest.raises(EngineError, match="RuntimeError: no such luck"):
        list(engine.generate([ask()]))


def test_a_process_that_dies_is_noticed_with_its_signal(fake) -> None:
    engine = fake(faults={"row3": "kill"}, slots=1)
    seen = []
    with pytest.raises(EngineDiedError, match="SIGKILL") as raised:
        for result in engine.generate(ask(f"row{n}") for n in range(9)):
            seen.append(result.request_id)
    assert raised.value.signal_number == signal.SIGKILL
    assert seen == ["row0", "row1", "row2"]


def test_a_process_that_dies_while_it_opens_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE", json.dumps({"start_s": 600.0}))
    opening = subprocess.Popen([sys.executable, "-c", _OPEN], stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
    host = _child_of(opening.pid)
    os.kill(host, signal.SIGSEGV)
    assert opening.communicate(timeout=60)[0].split() == ["EngineDiedError", str(int(signal.SIGSEGV))]


def test_the_engine_ends_with_who_opened_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE", json.dumps({"start_s": 600.0}))
    opening = subprocess.Popen([sys.executable, "-c", _OPEN], stdout=subprocess.DEVNULL, cwd=Path.cwd())
    host = _child_of(opening.pid)
    opening.kill()
    opening.wait()
    _wait_until_gone(host)


def test_cancelled_wherever_it_is(fake) -> None:
    engine = fake(slots=2, row_s=0.05, faults={"row0": "endless"})
    asked = [ask(f"row{n}") for n in range(6)]

    def requests() -> Iterator[SpeechRequest | None]:
        yield from asked
        engine.cancel("row5")  # it lies in the other process
        engine.cancel("row0")  # it goes on until it is cancelled
        engine.cancel("nobody")

    reasons = {name: reason for name, (reason, _) in clips(engine.generate(requests())).items()}
    assert reasons == {f"row{n}": "cancelled" if n in (0, 5) else "stop" for n in range(6)}


@pytest.mark.parametrize("slots", [4, 40, 400])
def test_no_more_requests_are_asked_for_ahead_than_the_engine_has(fake, slots: int) -> None:
    num_asked = 0

    def requests() -> Iterator[SpeechRequest]:
        nonlocal num_asked
        for n in range(2_000):
            num_asked += 1
            yield ask(f"row{n}")

    engine = fake(slots=slots, faults={f"row{n}": "endless" for n in range(1, 2_000)})
    results = engine.generate(requests())
    next(results)
    time.sleep(0.5)
    assert 1 + slots <= num_asked <= 1 + slots + min(max(slots, FIRST_AHEAD), AHEAD)
    engine._process.kill()
    with pytest.raises(EngineDiedError):
        next(results)


def test_nothing_is_asked_for_while_the_engine_does_not_ask(fake) -> None:
    num_asked = 0

    def requests() -> Iterator[SpeechRequest | None]:
        nonlocal num_asked
        yield ask("row0")
        while num_asked < 20:  # the engine has a place left, looks for another, and then it is busy for half a second
            num_asked += 1
            yield None

    results = fake(slots=2, row_s=0.5).generate(requests())
    assert next(results).request_id == "row0"
    assert num_asked < 5
    assert list(results) == []
    assert num_asked == 20


def test_requests_that_raise_end_it(fake) -> None:
    def requests() -> Iterator[SpeechRequest]:
        yield ask("row0")
        raise ValueError("nothing more to say")

    with pytest.raises(EngineError, match="the requests failed: ValueError: nothing more to say"):
        list(fake().generate(requests()))


def test_a_request_that_does_not_pickle_ends_it(fake) -> None:
    with pytest.raises(EngineError, match=r"the requests failed: .*pickle"):
        list(fake().generate([ask("row0"), ask("row1", reference=voice("v", load=lambda: hum(1.0)))]))


def test_closing_the_iterator_closes_the_engine(fake) -> None:
    engine = fake(row_s=0.01)
    results = engine.generate(ask(f"row{n}") for n in range(10_000))
    next(results)
    results.close()
    assert engine._process.returncode is not None
    with pytest.raises(EngineDiedError):
        list(engine.generate([ask()]))


_OPEN = """
from tts_batch.engine.errors import EngineDiedError
from tts_batch.engine.isolated import IsolatedEngine
from tts_batch.engine.request import EngineConfig
try: IsolatedEngine("tests.fake_engine:create", EngineConfig(model="none"))
except EngineDiedError as error: print(type(error).__name__, error.signal_number)
"""


def _child_of(pid: int, timeout_s: float = 60.0) -> int:
    """The engine's process, once it is about to open the engine."""
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        with suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                if b"engine.host" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        time.sleep(0.05)
    raise AssertionError("no engine's process came")


def _wait_until_gone(pid: int, timeout_s: float = 60.0) -> None:
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} is still there")
