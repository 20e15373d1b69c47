"""The laws of `generate` where something stands still: who is stuck ends, the others go on, no thread stays."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.engine.asking import ask
from tests.engine.scripted import (
    ScriptedCode2Wav,
    ScriptedPreparer,
    ScriptedRunner,
    compute_threads,
    scripted_generation,
    wait_until,
)
from tts_batch.engine import generation as generation_module
from tts_batch.engine.code2wav.utterance import Voiced
from tts_batch.engine.errors import EngineError
from tts_batch.engine.request import SpeechRequest
from tts_batch.engine.runner import DecodedRow, PreparedRow


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    yield
    assert compute_threads() == []


def test_a_stuck_stage_is_reported_with_its_stack(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation_module, "JOIN_S", 0.2)
    release = threading.Event()

    def stick(runner: ScriptedRunner) -> None:
        release.wait(30)

    generation = scripted_generation([ask("a")], ScriptedRunner(on_step=stick), stall_timeout_s=0.2)
    started = time.monotonic()
    with caplog.at_level(logging.ERROR), pytest.raises(EngineError, match="stalled: 'decode'"):
        next(generation.results())
    assert time.monotonic() - started < 5
    assert "in stick" in caplog.text
    assert not generation.stopped
    release.set()
    wait_until(lambda: generation.stopped)


def test_a_stuck_stage_that_cannot_be_described_is_reported_all_the_same(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation_module, "JOIN_S", 0.2)
    release = threading.Event()
    runner = ScriptedRunner(on_step=lambda runner: release.wait(30))

    def changing() -> list[tuple[PreparedRow, int]]:
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr(runner, "progress", changing)
    generation = scripted_generation([ask("a")], runner, stall_timeout_s=0.2)
    with caplog.at_level(logging.ERROR), pytest.raises(EngineError, match="stalled: 'decode'"):
        next(generation.results())
    assert "the compute thread is stuck" in caplog.text
    release.set()
    wait_until(lambda: generation.stopped)


class Forgetful(ScriptedRunner):
    """Loses the rows named `lost` when they end, and never moves those named `stuck`."""

    def step(self) -> list[DecodedRow]:
        decoded = super().step()
        for name in ("stuck 1", "stuck 2"):
            if name in self.active:
                self.active[name] = self.active[name][0], 1
        names = [row.prepared.request.request_id for row in decoded]
        return [row for row, name in zip(decoded, names, strict=True) if not name.startswith("lost")]


def test_a_dropped_hand_off_and_stuck_rows_fail_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    runner = Forgetful(4, on_step=lambda runner: time.sleep(0.001))
    names = ["lost 1", "a", "stuck 1", "b", "lost 2", "stuck 2", "c", "d", "e"]
    requests = [ask(name, max_frames=3) for name in names]
    started = time.monotonic()
    with caplog.at_level(logging.ERROR):
        results = list(scripted_generation(requests, runner, stall_timeout_s=0.4).results())
    assert time.monotonic() - started < 10
    assert Counter(r.request_id for r in results) == Counter(names)
    for result in results:
        assert result.reason == ("stalled" if result.request_id[:4] in ("lost", "stuc") else None)
    assert not runner.busy
    assert "stuck 1 1" in caplog.text  # its slot, with its frames
    assert "tts-batch-compute" in caplog.text  # and what every thread was doing


class Deaf(ScriptedRunner):
    """Takes rows in, and never admits one."""

    def step(self) -> list[DecodedRow]:
        time.sleep(0.001)
        return []


def test_a_runner_that_does_nothing_fails_all_its_rows() -> None:
    runner = Deaf(2)
    results = list(scripted_generation([ask("a"), ask("b"), ask("c")], runner, stall_timeout_s=0.2).results())
    assert {r.request_id: r.reason for r in results} == {"a": "stalled", "b": "stalled", "c": "stalled"}
    assert not runner.busy


def test_a_code2wav_that_stands_still_fails_its_rows() -> None:
    code2wav = ScriptedCode2Wav()
    code2wav.gate.clear()
    results = list(scripted_generation([ask("a"), ask("b")], code2wav=code2wav, stall_timeout_s=0.2).results())
    assert {r.request_id: r.reason for r in results} == {"a": "stalled", "b": "stalled"}
    assert not code2wav.busy


class Roomy(ScriptedRunner):
    """Lets many rows wait."""

    room = 1


def test_rows_may_wait_long_while_others_move() -> None:
    runner = Roomy(1, on_step=lambda runner: time.sleep(0.002))
    requests = [ask(str(i), max_frames=100) if i < 5 else None for i in range(600)]
    results = list(scripted_generation(requests, runner, stall_timeout_s=0.4).results())
    assert {r.finish_reason for r in results} == {"stop"}


def test_a_slow_receiver_is_no_stall() -> None:
    results = scripted_generation([ask(str(i)) for i in range(12)], ScriptedRunner(2), stall_timeout_s=0.1).results()
    reasons = []
    for result in results:
        time.sleep(0.12)
        reasons.append(result.reason)
    assert reasons == [None] * 12


def test_few_long_clips_wait_for_a_receiver_who_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_module, "MAX_QUEUED_SAMPLES", 10)  # a frame is one sample here
    generation = scripted_generation([ask(str(i), max_frames=4) for i in range(9)], ScriptedRunner(4))
    wait_until(lambda: generation._results.qsize() == 2)
    time.sleep(0.1)
    assert generation._results.qsize() == 2
    longer = [ask(str(i), max_frames=12) for i in range(3)]
    assert len(list(generation.results())) == 9
    assert len(list(scripted_generation(longer, ScriptedRunner(4)).results())) == 3
    assert generation._queued_samples == 0


def test_a_receiver_that_goes_away_leaves_no_thread() -> None:
    results = scripted_generation((ask(str(i)) for i in range(1_000_000)), ScriptedRunner(2)).results()
    next(results)
    assert len(compute_threads()) == 1
    del results
    gc.collect()
    assert compute_threads() == []


@pytest.mark.parametrize("stage", ["load", "prepare"])
def test_a_request_that_is_never_prepared_ends_as_stalled_before_the_engine_dies(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setattr(generation_module, "JOIN_S", 0.2)
    release = threading.Event()

    class Hangs(ScriptedPreparer):
        def load(self, request: SpeechRequest) -> None:
            self.hang(request, "load")

        def prepare(self, request: SpeechRequest) -> PreparedRow:
            self.hang(request, "prepare")
            return super().prepare(request)

        def hang(self, request: SpeechRequest, at: str) -> None:
            if request.request_id == "dead share" and stage == at:
                release.wait(30)

    requests = [ask("a", max_frames=1), None, *[None] * 5, ask("dead share"), ask("never pulled")]
    generation = scripted_generation(requests, preparer=Hangs(), stall_timeout_s=0.2)
    results = generation.results()
    assert next(results).reason is None
    stalled = next(results)
    assert (stalled.request_id, stalled.reason) == ("dead share", "stalled")
    with pytest.raises(EngineError, match=f"stalled: {stage!r}"):
        next(results)
    release.set()
    wait_until(lambda: generation.stopped)


def test_a_result_that_comes_after_the_end_is_dropped() -> None:
    class Twice(ScriptedCode2Wav):
        def poll(self, *, drain: bool) -> list[Voiced]:
            return 2 * super().poll(drain=drain)

    results = list(scripted_generation([ask("a"), ask("b")], code2wav=Twice()).results())
    assert Counter(r.request_id for r in results) == Counter("ab")


def test_a_runner_that_cannot_even_let_go_is_no_hang() -> None:
    class Broken(ScriptedRunner):
        def step(self) -> list[DecodedRow]:
            raise RuntimeError("device lost")

        def evict(self) -> list[PreparedRow]:
            raise RuntimeError("device lost for good")

    with pytest.raises(EngineError, match=r"device lost$"):
        list(scripted_generation([ask("a")], Broken()).results())
