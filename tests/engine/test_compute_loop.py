"""The laws of the compute loop: one end for each request, aborts anywhere, bounded queues, no threads left."""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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
from tts_batch.engine import compute_loop, exchange
from tts_batch.engine.errors import DuplicateRequest, EngineError
from tts_batch.engine.generation import generate
from tts_batch.engine.request import SpeechRequest
from tts_batch.engine.runner import EngineRow

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that are added together are taken together, however slow the machine."""
    monkeypatch.setattr(exchange, "GATHER_S", 20.0)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 4), max_size=40), st.integers(1, 5))
def test_every_request_ends_exactly_once(script: list[int], max_num_seqs: int) -> None:
    requests = [ask(str(i), max_frames=frames, seed=i) for i, frames in enumerate(script)]
    results = run_scripted(requests, ScriptedRunner(max_num_seqs))
    assert Counter(r.request_id for r in results) == Counter(r.request_id for r in requests)
    for result in results:
        assert result.finish_reason == "stop"
        assert result.num_frames == len(result.audio) == script[int(result.request_id)]
        assert (result.codes == int(result.request_id)).all()


# What it wants, and when it waits


def test_more_requests_than_there_is_room_for_wait() -> None:
    hold, runner = threading.Event(), ScriptedRunner(4, on_step=lambda runner: hold.wait(10))
    with scripted_engine(runner) as engine:
        assert engine.num_wanted == 4
        for i in range(3):
            engine.add_request(ask(str(i), max_frames=2))
            assert engine.num_wanted == 3 - i
        wait_until(lambda: runner.num_steps == 1)
        assert engine.num_wanted == 1
        for i in range(3, 9):  # more than it wants wait
            engine.add_request(ask(str(i), max_frames=2))
        assert engine.num_wanted == 0
        hold.set()
        assert {r.request_id for r in collect(engine, 9)} == {str(i) for i in range(9)}
        assert engine.num_wanted == 4


def test_a_caller_that_is_slow_holds_the_work_back() -> None:
    runner = ScriptedRunner(2)
    with scripted_engine(runner) as engine:
        for i in range(40):
            engine.add_request(ask(str(i), max_frames=1))
        wait_until(lambda: runner.num_steps >= 2)
        steps = -1
        while steps != runner.num_steps:
            steps = runner.num_steps
            time.sleep(0.1)
        assert steps <= 3  # a queue of 4 results, and one on its way into it
        assert Counter(r.request_id for r in collect(engine, 40)) == Counter(str(i) for i in range(40))


def test_few_long_clips_wait_for_a_caller_who_is_slow() -> None:
    runner = ScriptedRunner(4)
    with scripted_engine(runner, max_waiting_samples=10) as engine:  # a frame is one sample here
        for i in range(9):
            engine.add_request(ask(str(i), max_frames=4))
        wait_until(lambda: runner.num_steps == 4)
        time.sleep(0.1)
        assert runner.num_steps == 4
        assert len(engine.step(5.0)) == 2
        assert len(collect(engine, 7)) == 7
    longer = [ask(str(i), max_frames=12) for i in range(3)]
    assert len(run_scripted(longer, ScriptedRunner(4), max_waiting_samples=10)) == 3


def test_step_waits_no_longer_than_it_may() -> None:
    with scripted_engine() as engine:
        started_s = time.monotonic()
        assert engine.step(0.0) == []
        assert time.monotonic() - started_s < 0.15
        assert engine.step(0.2) == []
        assert 0.2 <= time.monotonic() - started_s < 2
        engine.add_request(ask("a"))
        assert [r.request_id for r in engine.step(20.0)] == ["a"]
        assert time.monotonic() - started_s < 5


def test_step_returns_when_there_is_room_again() -> None:
    class Lockstep(ScriptedRunner):
        """Takes nothing while a batch decodes."""

        @property
        def room(self) -> int:
            return 0 if self.active else super().room

    code2wav = ScriptedCode2Wav()
    code2wav.gate.clear()
    runner = Lockstep(2)
    with scripted_engine(runner, code2wav=code2wav) as engine:
        engine.add_request(ask("a", max_frames=3))
        started_s = time.monotonic()
        while engine.num_wanted == 0 or not code2wav.rows:
            assert engine.step(20.0) == []
        assert time.monotonic() - started_s < 10  # though its clip has not ended
        code2wav.gate.set()
        assert len(collect(engine, 1)) == 1


def test_an_idle_engine_rests() -> None:
    with scripted_engine() as engine:
        engine.add_request(ask("a"))
        collect(engine, 1)
        started_s = time.process_time()
        engine.step(0.5)
        assert time.process_time() - started_s < 0.1


def test_an_idle_engine_starts_without_a_step() -> None:
    runner = ScriptedRunner(4)
    with scripted_engine(runner) as engine:
        for name in "ab":
            engine.add_request(ask(name))
            wait_until(lambda: runner.num_steps > 0)
            wait_until(lambda: not runner.busy)
            runner.num_steps = 0
        assert len(collect(engine, 2)) == 2


@pytest.mark.usefixtures("patient")
def test_requests_that_are_added_together_start_together() -> None:
    together: list[int] = []
    runner = ScriptedRunner(8, on_step=lambda runner: together.append(len(runner.active)))
    run_scripted([ask(str(i), max_frames=1) for i in range(8)], runner)
    assert together == [8]


def test_the_meter_is_read_between_batches() -> None:
    hold, runner = threading.Event(), ScriptedRunner(4, on_step=lambda runner: hold.wait(10))
    with scripted_engine(runner) as engine:
        engine.add_request(ask("a"))
        with pytest.raises(EngineError, match="1 requests are in flight"):
            engine.read_meter()
        hold.set()
        collect(engine, 1)
        first = engine.read_meter()
        assert first.host_s["decode"] > 0
        engine.add_request(ask("a"))
        collect(engine, 1)
        assert engine.read_meter().since(first).host_s["decode"] > 0


class PickyPreparer(ScriptedPreparer):
    """Raises what the text says."""

    class RowError(Exception):
        reason, message = "ref_unreadable", "the file is not audio."

    ERRORS: ClassVar = {
        "typed": RowError(),
        "untyped": ValueError("scripted"),
        "memory": torch.OutOfMemoryError("scripted"),
    }

    def prepare(self, request: SpeechRequest) -> EngineRow:
        if request.text in self.ERRORS:
            raise self.ERRORS[request.text].with_traceback(None)
        return super().prepare(request)


def test_a_bad_row_is_its_own_error_and_no_one_elses() -> None:
    texts = ["fine", "typed", "untyped", "memory", "also fine"]
    requests = [ask(text, text=text) for text in texts]
    results = {r.request_id: r for r in run_scripted(requests, preparer=PickyPreparer())}
    assert {name: r.reason for name, r in results.items()} == {
        "fine": None,
        "typed": "ref_unreadable",
        "untyped": "engine_error",
        "memory": "out_of_memory",
        "also fine": None,
    }
    assert results["typed"].error == "the file is not audio."
    assert "ValueError: scripted" in results["untyped"].error
    assert results["typed"].finish_reason == "error"
    assert results["typed"].audio is None


def test_an_id_in_flight_is_refused_and_may_come_again_once_it_has_ended() -> None:
    with scripted_engine() as engine:
        engine.add_request(ask("a", max_frames=3))
        with pytest.raises(DuplicateRequest, match="'a' is already in flight"):
            engine.add_request(ask("a"))
        assert [(r.finish_reason, r.num_frames) for r in collect(engine, 1)] == [("stop", 3)]
        engine.add_request(ask("a", max_frames=1))
        assert [(r.finish_reason, r.num_frames) for r in collect(engine, 1)] == [("stop", 1)]


# Aborts


def test_abort_while_queued_while_waiting_and_while_decoding() -> None:
    release = threading.Event()

    def hold(runner: ScriptedRunner) -> None:
        if runner.num_steps == 2:
            assert release.wait(10)

    runner = ScriptedRunner(2, on_step=hold, look_ahead=1)
    with scripted_engine(runner) as engine:
        for name in ("decoding", "survivor", "waiting", "queued"):
            engine.add_request(ask(name, max_frames=50))
        wait_until(lambda: runner.num_steps == 2)
        engine.abort_request("queued")
        (first,) = engine.step(5.0)  # while nothing moves
        assert (first.request_id, first.finish_reason) == ("queued", "cancelled")
        for name in ("decoding", "decoding", "waiting", "never seen"):
            engine.abort_request(name)
        release.set()
        results = collect(engine, 3)
        assert {r.request_id: r.finish_reason for r in results} == {
            "decoding": "cancelled",
            "waiting": "cancelled",
            "survivor": "stop",
        }
        assert [r.audio is None for r in results if r.finish_reason == "cancelled"] == [True, True]


def test_abort_before_code2wav() -> None:
    with scripted_engine(ScriptedRunner(4, on_step=lambda runner: engine.abort_request("a"))) as engine:
        results = generate(engine, [ask("a", max_frames=1), ask("b", max_frames=1)])
        assert {r.request_id: r.finish_reason for r in results} == {"a": "cancelled", "b": "stop"}


def test_abort_in_code2wav_and_in_delivery() -> None:
    code2wav = ScriptedCode2Wav()
    code2wav.gate.clear()
    with scripted_engine(code2wav=code2wav) as engine:
        for name in "abc":
            engine.add_request(ask(name))
        wait_until(lambda: set(code2wav.rows) == {"a", "b", "c"})
        engine.abort_request("a")
        wait_until(lambda: set(code2wav.rows) == {"b", "c"})  # it does not stay until its turn comes
        code2wav.gate.set()
        wait_until(lambda: not code2wav.rows)  # all wait for the caller now
        engine.abort_request("b")
        assert {r.request_id: r.finish_reason for r in collect(engine, 3)} == {
            "a": "cancelled",
            "b": "cancelled",
            "c": "stop",
        }


def test_abort_after_the_end_does_nothing_to_the_next_of_that_id() -> None:
    with scripted_engine() as engine:
        engine.add_request(ask("a"))
        collect(engine, 1)
        engine.abort_request("a")
        engine.add_request(ask("a"))
        assert [r.finish_reason for r in collect(engine, 1)] == ["stop"]


def test_a_request_that_the_stages_lost_can_be_aborted() -> None:
    class Forgetful(ScriptedRunner):
        def step(self) -> list[EngineRow]:
            super().step()
            return []

    runner = Forgetful()
    with scripted_engine(runner) as engine:
        engine.add_request(ask("a"))
        wait_until(lambda: runner.num_steps > 0 and not runner.busy)
        engine.abort_request("a")
        assert [r.finish_reason for r in collect(engine, 1)] == ["cancelled"]


# Ends that come early


@pytest.mark.parametrize("returned", [0, 1, 5])
def test_closing_early_frees_everything(returned: int) -> None:
    runner, code2wav = ScriptedRunner(4), ScriptedCode2Wav()
    with scripted_engine(runner, code2wav=code2wav) as engine:
        for i in range(1_000):
            engine.add_request(ask(str(i)))
        collect(engine, returned)
        started_s = time.monotonic()
        engine.close()
        assert time.monotonic() - started_s < 5
        assert compute_threads() == []
        assert not runner.busy
        assert not code2wav.busy
        assert engine.num_wanted == 0


def test_an_exception_of_the_runner_kills_the_engine_after_what_is_done() -> None:
    def fail(runner: ScriptedRunner) -> None:
        if runner.num_steps == 3:
            raise RuntimeError("device lost")

    with scripted_engine(ScriptedRunner(2, on_step=fail)) as engine:
        engine.add_request(ask("a", max_frames=1))
        engine.add_request(ask("b", max_frames=9))
        wait_until(lambda: compute_threads() == [])
        assert [r.request_id for r in engine.step(5.0)] == ["a"]
        for _ in range(2):
            with pytest.raises(EngineError, match=r"^the engine failed: RuntimeError: device lost\.$"):
                engine.step(5.0)
        with pytest.raises(EngineError, match="device lost"):
            engine.add_request(ask("c"))
        with pytest.raises(EngineError, match="device lost"):
            engine.read_meter()
        engine.abort_request("b")
        assert engine.num_wanted == 0


# Memory


def test_out_of_memory_halves_the_rows_and_starts_them_again() -> None:
    def small_memory(runner: ScriptedRunner) -> None:
        if len(runner.active) > 3:
            raise torch.OutOfMemoryError("scripted")

    runner = ScriptedRunner(8, on_step=small_memory)
    results = run_scripted([ask(str(i), max_frames=1 + i % 3) for i in range(30)], runner)
    assert Counter(r.request_id for r in results) == Counter(str(i) for i in range(30))
    assert {r.finish_reason for r in results} == {"stop"}
    assert runner.max_num_seqs == 2


def test_a_row_that_does_not_fit_alone_fails_and_the_rest_goes_on() -> None:
    def no_memory_for_a(runner: ScriptedRunner) -> None:
        if "a" in runner.active:
            raise torch.OutOfMemoryError("scripted")

    runner = ScriptedRunner(1, on_step=no_memory_for_a)
    results = run_scripted([ask("a"), ask("b")], runner)
    assert [(r.request_id, r.reason) for r in results] == [("a", "out_of_memory"), ("b", None)]


def test_code2wav_out_of_memory_is_the_rows_error() -> None:
    requests = [ask("long", max_frames=5), ask("short", max_frames=2)]
    results = run_scripted(requests, code2wav=ScriptedCode2Wav(too_big=5))
    assert {r.request_id: r.reason for r in results} == {"long": "out_of_memory", "short": None}


def test_what_did_not_fit_is_let_go_of_before_less_is_tried() -> None:
    failed: list[weakref.ref[torch.Tensor]] = []

    def small_memory(runner: ScriptedRunner) -> None:
        assert [ref() for ref in failed] == [None] * len(failed)
        if len(runner.active) > 1:
            intermediate = torch.zeros(8)
            failed.append(weakref.ref(intermediate))
            raise torch.OutOfMemoryError("scripted")

    class Watched(ScriptedRunner):
        def evict(self) -> list[EngineRow]:
            assert [ref() for ref in failed] == [None] * len(failed)
            return super().evict()

    results = run_scripted([ask(name) for name in "abcd"], Watched(4, on_step=small_memory))
    assert [result.finish_reason for result in results] == ["stop"] * 4
    assert len(failed) == 2


def test_no_memory_to_hand_codes_to_code2wav_is_the_rows_error() -> None:
    class Full(ScriptedCode2Wav):
        def submit(self, row: EngineRow) -> None:
            if row.request_id == "a":
                raise torch.OutOfMemoryError("scripted")
            super().submit(row)

    results = run_scripted([ask("a"), ask("b")], code2wav=Full())
    assert {r.request_id: r.reason for r in results} == {"a": "out_of_memory", "b": None}


def test_a_row_that_lost_its_numbers_is_no_clip() -> None:
    class Overflowing(ScriptedRunner):
        def step(self) -> list[EngineRow]:
            rows = super().step()
            return [row.end(row.codes, "error", {}) if len(row.codes) == 3 else row for row in rows]

    requests = [ask("a", max_frames=3), ask("b", max_frames=4)]
    results = {r.request_id: r for r in run_scripted(requests, Overflowing())}
    assert {name: r.reason for name, r in results.items()} == {"a": "non_finite", "b": None}
    assert "no longer finite after 3 frames" in results["a"].error


@pytest.mark.usefixtures("patient")
def test_requests_that_take_long_to_load_do_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute_loop, "BURST", 2)
    monkeypatch.setattr(compute_loop, "TAKE_IN_S", 0.0)
    steps_before: dict[str, int] = {}
    runner = ScriptedRunner(8)

    class Watched(ScriptedPreparer):
        def load(self, request: SpeechRequest) -> None:
            steps_before[request.request_id] = runner.num_steps

    results = run_scripted([ask(n, max_frames=9) for n in "abcdef"], runner, preparer=Watched())
    assert len(results) == 6
    assert steps_before == {"a": 0, "b": 0, "c": 1, "d": 1, "e": 2, "f": 2}


@pytest.mark.usefixtures("patient")
def test_the_references_of_the_next_requests_are_loaded_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute_loop, "BURST", 2)
    monkeypatch.setattr(compute_loop, "LOAD_AHEAD", 3)
    ahead: list[str] = []

    class Watched(ScriptedPreparer):
        def load_ahead(self, requests: Iterable[SpeechRequest]) -> None:
            ahead.append("".join(request.request_id for request in requests))

    run_scripted([ask(name) for name in "abcdef"], ScriptedRunner(12), preparer=Watched())
    assert [names for names in ahead if names] == ["abc", "cde", "ef"]


@pytest.mark.usefixtures("patient")
def test_a_burst_is_loaded_then_encoded_then_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute_loop, "BURST", 3)
    steps: list[str] = []

    class Watched(ScriptedPreparer):
        def load(self, request: SpeechRequest) -> None:
            steps.append(f"load {request.request_id}")

        def encode_loaded(self) -> None:
            steps.append("encode")

        def prepare(self, request: SpeechRequest) -> EngineRow:
            steps.append(f"prepare {request.request_id}")
            return super().prepare(request)

    requests = [ask(name) for name in "abcd"]
    results = run_scripted(requests, ScriptedRunner(4), preparer=Watched())
    assert Counter(r.request_id for r in results) == Counter("abcd")
    assert steps == [
        "load a", "load b", "load c", "encode", "prepare a", "prepare b", "prepare c", "load d", "encode", "prepare d",
    ]  # fmt: skip


@pytest.mark.usefixtures("patient")
def test_rows_that_will_only_wait_are_prepared_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute_loop, "BURST_AHEAD", 3)
    added: list[int] = []
    runner = ScriptedRunner(4, lambda r: added.append(len(r.active) + len(r.waiting)), look_ahead=500)
    requests = [ask(str(i), max_frames=50) for i in range(100)]
    results = run_scripted(requests, runner)
    assert {r.finish_reason for r in results} == {"stop"} and len(results) == 100
    steps = added[:12]
    # The first burst is a whole one; then three come before every step, until all are there.
    assert steps == [min(100, compute_loop.BURST + 3 * step) for step in range(1, 13)]


def test_ten_thousand_requests_through_sixteen_slots_leave_nothing() -> None:
    runner, code2wav, held = ScriptedRunner(16), ScriptedCode2Wav(), []
    requests = (ask(str(i), max_frames=1 + i % 5, text="typed" if i % 97 == 0 else "fine") for i in range(10_000))
    ends: Counter[str] = Counter()
    with scripted_engine(runner, code2wav=code2wav, preparer=PickyPreparer()) as engine:
        tracemalloc.start()
        for i, result in enumerate(generate(engine, requests)):
            ends[result.reason or result.finish_reason] += 1
            if i % 50 == 0:
                engine.abort_request(str(i + 10))
            if i in (2_000, 9_000):
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert sum(ends.values()) == 10_000
        assert set(ends) == {"stop", "ref_unreadable", "cancelled"}
        assert held[1] - held[0] < 50 * 7_000  # bytes: a queue more or less, but nothing of every request
        assert (runner.busy, code2wav.busy) == (False, False)
        assert engine.num_wanted == 16
