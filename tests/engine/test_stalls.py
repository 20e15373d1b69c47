"""The laws of the compute loop where something stands still: who is stuck ends, the others go on, no thread stays."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter

import pytest

from tests.engine.asking import ask
from tests.engine.scripted import (
    ScriptedCode2Wav,
    ScriptedPreparer,
    ScriptedRunner,
    collect,
    compute_threads,
    run_scripted,
    scripted_engine,
    wait_until,
)
from tts_batch.engine import compute_loop
from tts_batch.engine.errors import EngineError
from tts_batch.engine.generation import generate
from tts_batch.engine.request import SpeechRequest, SpeechResult
from tts_batch.engine.runner import EngineRow

pytestmark = pytest.mark.usefixtures("no_threads_left")


def thread_is_over() -> bool:
    return compute_threads() == []


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing does not wait long for a thread that is stuck."""
    monkeypatch.setattr(compute_loop, "JOIN_S", 0.2)


@pytest.mark.usefixtures("impatient")
def test_a_stuck_stage_is_reported_with_its_stack(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    def stick(runner: ScriptedRunner) -> None:
        release.wait(30)

    with scripted_engine(ScriptedRunner(on_step=stick), stall_timeout_s=0.2) as engine, caplog.at_level(logging.ERROR):
        engine.add_request(ask("a"))
        started = time.monotonic()
        assert engine.step(20.0) == []
        with pytest.raises(EngineError, match="stalled: 'decode'"):
            engine.step(20.0)
        assert time.monotonic() - started < 5
        assert "in stick" in caplog.text
        assert engine.num_wanted == 0
        engine.close()
        assert engine.is_alive
        release.set()
        wait_until(thread_is_over)


@pytest.mark.usefixtures("impatient")
def test_a_stuck_stage_that_cannot_be_described_is_reported_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    class Changing(ScriptedRunner):
        def progress(self) -> list[tuple[EngineRow, int]]:
            if self.num_steps:
                raise RuntimeError("dictionary changed size during iteration")
            return super().progress()

    runner = Changing(on_step=lambda runner: release.wait(30))
    with scripted_engine(runner, stall_timeout_s=0.2) as engine, caplog.at_level(logging.ERROR):
        engine.add_request(ask("a"))
        assert engine.step(20.0) == []
        with pytest.raises(EngineError, match="stalled: 'decode'"):
            engine.step(20.0)
        assert "the compute thread is stuck" in caplog.text
        release.set()
        wait_until(thread_is_over)


class Forgetful(ScriptedRunner):
    """Loses the rows named `lost` when they end, and never moves those named `stuck`."""

    def step(self) -> list[EngineRow]:
        decoded = super().step()
        for name in ("stuck 1", "stuck 2"):
            if name in self.active:
                self.active[name] = self.active[name][0], 1
        names = [row.request_id for row in decoded]
        return [row for row, name in zip(decoded, names, strict=True) if not name.startswith("lost")]


def test_a_dropped_hand_off_and_stuck_rows_fail_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    runner = Forgetful(4, on_step=lambda runner: time.sleep(0.001))
    names = ["lost 1", "a", "stuck 1", "b", "lost 2", "stuck 2", "c", "d", "e"]
    requests = [ask(name, max_frames=3) for name in names]
    started = time.monotonic()
    with caplog.at_level(logging.ERROR):
        results = run_scripted(requests, runner, stall_timeout_s=0.4)
    assert time.monotonic() - started < 10
    assert Counter(r.request_id for r in results) == Counter(names)
    for result in results:
        assert result.reason == ("stalled" if result.request_id[:4] in ("lost", "stuc") else None)
    assert not runner.busy
    assert "stuck 1 1" in caplog.text  # its slot, with its frames
    assert "tts-batch-compute" in caplog.text  # and what every thread was doing


class Deaf(ScriptedRunner):
    """Takes rows in, and never admits one."""

    def step(self) -> list[EngineRow]:
        time.sleep(0.001)
        return []


def test_a_runner_that_does_nothing_fails_all_its_rows() -> None:
    runner = Deaf(2)
    results = run_scripted([ask("a"), ask("b"), ask("c")], runner, stall_timeout_s=0.2)
    assert {r.request_id: r.reason for r in results} == {"a": "stalled", "b": "stalled", "c": "stalled"}
    assert not runner.busy


def test_a_code2wav_that_stands_still_fails_its_rows() -> None:
    code2wav = ScriptedCode2Wav()
    code2wav.gate.clear()
    results = run_scripted([ask("a"), ask("b")], code2wav=code2wav, stall_timeout_s=0.2)
    assert {r.request_id: r.reason for r in results} == {"a": "stalled", "b": "stalled"}
    assert not code2wav.busy


class Roomy(ScriptedRunner):
    """Lets many rows wait."""

    room = 1


def test_rows_may_wait_long_while_others_move() -> None:
    runner = Roomy(1, on_step=lambda runner: time.sleep(0.002))
    results = run_scripted([ask(str(i), max_frames=100) for i in range(5)], runner, stall_timeout_s=0.4)
    assert {r.finish_reason for r in results} == {"stop"}


def test_a_slow_caller_is_no_stall() -> None:
    reasons = []
    with scripted_engine(ScriptedRunner(2), stall_timeout_s=0.1) as engine:
        for result in generate(engine, [ask(str(i)) for i in range(12)]):
            time.sleep(0.12)
            reasons.append(result.reason)
    assert reasons == [None] * 12


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("stage", ["load", "prepare"])
def test_a_request_that_is_never_prepared_ends_as_stalled_before_the_engine_dies(stage: str) -> None:
    release = threading.Event()

    class Hangs(ScriptedPreparer):
        def load(self, request: SpeechRequest) -> None:
            self.hang(request, "load")

        def prepare(self, request: SpeechRequest) -> EngineRow:
            self.hang(request, "prepare")
            return super().prepare(request)

        def hang(self, request: SpeechRequest, at: str) -> None:
            if request.request_id == "dead share" and stage == at:
                release.wait(30)

    with scripted_engine(preparer=Hangs(), stall_timeout_s=0.2) as engine:
        engine.add_request(ask("a", max_frames=1))
        assert [r.reason for r in collect(engine, 1)] == [None]
        engine.add_request(ask("dead share"))
        wait_until(lambda: engine.num_wanted == 3)
        engine.add_request(ask("never taken"))
        assert [(r.request_id, r.reason) for r in collect(engine, 1)] == [("dead share", "stalled")]
        with pytest.raises(EngineError, match=f"stalled: {stage!r}"):
            engine.step(5.0)
        release.set()
        wait_until(thread_is_over)


def test_a_result_that_comes_after_the_end_is_dropped() -> None:
    class Twice(ScriptedCode2Wav):
        def poll(self, *, drain: bool) -> list[SpeechResult]:
            return 2 * super().poll(drain=drain)

    results = run_scripted([ask("a"), ask("b")], code2wav=Twice())
    assert Counter(r.request_id for r in results) == Counter("ab")


def test_a_runner_that_cannot_even_let_go_is_no_hang() -> None:
    class Broken(ScriptedRunner):
        def step(self) -> list[EngineRow]:
            raise RuntimeError("device lost")

        def evict(self) -> list[EngineRow]:
            raise RuntimeError("device lost for good")

    with pytest.raises(EngineError, match=r"device lost\.$"):
        run_scripted([ask("a")], Broken())
