"""The laws of `generate`: lazy intake, one end for each request, cancellation anywhere, deadlines, no threads left."""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
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
    compute_threads,
    scripted_generation,
    wait_until,
)
from tts_batch.engine import generation as generation_module
from tts_batch.engine.errors import EngineError
from tts_batch.engine.request import SpeechRequest
from tts_batch.engine.runner import DecodedRow, PreparedRow


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    yield
    assert compute_threads() == []


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(1, 4)), max_size=40), st.integers(1, 5))
def test_every_request_ends_exactly_once(script: list[int | None], max_num_seqs: int) -> None:
    requests = [ask(str(i), max_frames=frames, seed=i) if frames else None for i, frames in enumerate(script)]
    results = list(scripted_generation(requests, ScriptedRunner(max_num_seqs)).results())
    assert Counter(r.request_id for r in results) == Counter(r.request_id for r in requests if r)
    for result in results:
        assert result.finish_reason == "stop"
        assert result.num_frames == len(result.audio) == script[int(result.request_id)]
        assert (result.codes == int(result.request_id)).all()


def test_requests_are_pulled_only_when_there_is_room() -> None:
    pulled = 0

    def requests() -> Iterator[SpeechRequest]:
        nonlocal pulled
        for i in range(200):
            pulled += 1
            yield ask(str(i), max_frames=1)

    results = scripted_generation(requests(), ScriptedRunner(4)).results()
    returned = 0
    for _ in results:
        returned += 1
        # at most: 4 rows decoding or just decoded, a queue of 8, one result on its way in
        time.sleep(0.001)
        assert pulled - returned <= 4 + 8 + 1
    assert (pulled, returned) == (200, 200)


def test_none_means_ask_again_and_never_stops_the_work() -> None:
    runner = ScriptedRunner(4)
    retries: list[SpeechRequest] = []

    def requests() -> Iterator[SpeechRequest | None]:
        yield ask("first", max_frames=3)
        while not retries:
            yield None
        yield retries.pop()

    started = time.process_time()
    ended = []
    for result in scripted_generation(requests(), runner).results():
        ended.append(result.request_id)
        if result.request_id == "first":
            time.sleep(0.3)  # idle all the while
            retries.append(ask("retry"))
    assert ended == ["first", "retry"]
    assert time.process_time() - started < 0.25, "polling ran hot"


class PickyPreparer(ScriptedPreparer):
    """Raises what the text says."""

    class RowError(Exception):
        reason, message = "ref_unreadable", "the file is not audio."

    ERRORS: ClassVar = {
        "typed": RowError(),
        "untyped": ValueError("scripted"),
        "memory": torch.OutOfMemoryError("scripted"),
    }

    def prepare(self, request: SpeechRequest) -> PreparedRow:
        if request.text in self.ERRORS:
            raise self.ERRORS[request.text].with_traceback(None)
        return super().prepare(request)


def test_a_bad_row_is_its_own_error_and_no_one_elses() -> None:
    texts = ["fine", "typed", "untyped", "memory", "also fine"]
    requests = [ask(text, text=text) for text in texts]
    generation = scripted_generation(requests, preparer=PickyPreparer())
    results = {r.request_id: r for r in generation.results()}
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


def test_a_second_request_of_the_same_id_fails_while_the_first_is_in_flight() -> None:
    requests = [ask("a", max_frames=3), ask("a", max_frames=1)]
    results = list(scripted_generation(requests).results())
    assert [(r.finish_reason, r.reason) for r in results] == [("error", "duplicate_id"), ("stop", None)]


def test_an_id_that_has_ended_may_come_again() -> None:
    again: list[SpeechRequest | None] = []

    def requests() -> Iterator[SpeechRequest | None]:
        yield ask("a")
        while not again:
            yield None
        yield again.pop()

    results = []
    for result in scripted_generation(requests()).results():
        results.append(result.finish_reason)
        if len(results) == 1:
            again.append(ask("a"))
    assert results == ["stop", "stop"]


# Cancellation


def test_cancel_while_waiting_and_while_decoding() -> None:
    release = threading.Event()

    def hold(runner: ScriptedRunner) -> None:
        if runner.num_steps == 2:
            assert release.wait(10)

    runner = ScriptedRunner(4, on_step=hold)
    generation = scripted_generation([ask(name, max_frames=50) for name in "abc"] + [ask("d")], runner)
    wait_until(lambda: runner.num_steps == 2)
    generation.cancel("a")
    generation.cancel("a")
    generation.cancel("never seen")
    release.set()
    results = list(generation.results())
    assert Counter((r.request_id, r.finish_reason) for r in results) == Counter(
        [("a", "cancelled"), ("b", "stop"), ("c", "stop"), ("d", "stop")]
    )
    assert next(r for r in results if r.request_id == "a").audio is None


def test_cancel_before_code2wav() -> None:
    generation = None

    def cancel(runner: ScriptedRunner) -> None:
        wait_until(lambda: generation is not None)
        generation.cancel("a")

    generation = scripted_generation(
        [ask("a", max_frames=1), ask("b", max_frames=1)], ScriptedRunner(4, on_step=cancel)
    )
    assert {r.request_id: r.finish_reason for r in generation.results()} == {"a": "cancelled", "b": "stop"}


def test_cancel_in_code2wav_and_in_delivery() -> None:
    code2wav = ScriptedCode2Wav()
    code2wav.gate.clear()
    generation = scripted_generation([ask("a"), ask("b"), ask("c")], code2wav=code2wav)
    wait_until(lambda: set(code2wav.rows) == {"a", "b", "c"})
    generation.cancel("a")
    wait_until(lambda: set(code2wav.rows) == {"b", "c"})  # it does not stay until its turn comes
    code2wav.gate.set()
    wait_until(generation._finished.is_set)  # all wait in the queue now
    generation.cancel("b")
    assert {r.request_id: r.finish_reason for r in generation.results()} == {
        "a": "cancelled",
        "b": "cancelled",
        "c": "stop",
    }


def test_cancel_after_the_end_does_nothing_to_the_next_of_that_id() -> None:
    more: list[SpeechRequest | None] = [None]

    def requests() -> Iterator[SpeechRequest | None]:
        yield ask("a")
        while more[0] is None:
            yield None
        yield more[0]

    generation = scripted_generation(requests())
    results = generation.results()
    assert next(results).finish_reason == "stop"
    generation.cancel("a")
    more[0] = ask("a")
    assert [r.finish_reason for r in results] == ["stop"]


# Ends that come early


@pytest.mark.parametrize("returned", [0, 1, 5])
def test_closing_early_frees_everything(returned: int) -> None:
    runner, code2wav = ScriptedRunner(4), ScriptedCode2Wav()
    requests = (ask(str(i)) for i in range(1_000_000))
    results = scripted_generation(requests, runner, code2wav=code2wav).results()
    for _ in range(returned + 1):
        next(results)
    results.close()
    assert compute_threads() == []
    assert not runner.busy
    assert not code2wav.busy
    assert list(results) == []


def test_a_slow_receiver_holds_the_intake_and_a_closing_one_is_not_waited_for() -> None:
    pulled = []

    def requests() -> Iterator[SpeechRequest]:
        for i in range(1_000):
            pulled.append(i)
            yield ask(str(i), max_frames=1)

    results = scripted_generation(requests(), ScriptedRunner(2)).results()
    next(results)
    time.sleep(0.2)
    assert len(pulled) <= 1 + 2 + 4 + 1
    started = time.monotonic()
    results.close()
    assert time.monotonic() - started < 5


def test_what_the_request_source_raises_kills_the_generation_after_what_is_done() -> None:
    def requests() -> Iterator[SpeechRequest]:
        yield ask("a", max_frames=1)
        yield from [None] * 50
        raise OSError("the table is gone")

    results = scripted_generation(requests()).results()
    assert next(results).request_id == "a"
    with pytest.raises(EngineError, match="OSError: the table is gone"):
        next(results)


def test_an_exception_of_the_runner_kills_the_generation() -> None:
    def fail(runner: ScriptedRunner) -> None:
        if runner.num_steps == 3:
            raise RuntimeError("device lost")

    results = scripted_generation([ask("a", max_frames=1), ask("b", max_frames=9)], ScriptedRunner(2, on_step=fail))
    results = results.results()
    assert next(results).request_id == "a"
    with pytest.raises(EngineError, match="device lost"):
        next(results)


# Memory


def test_out_of_memory_halves_the_rows_and_starts_them_again() -> None:
    def small_memory(runner: ScriptedRunner) -> None:
        if len(runner.active) > 3:
            raise torch.OutOfMemoryError("scripted")

    runner = ScriptedRunner(8, on_step=small_memory)
    results = list(scripted_generation([ask(str(i), max_frames=1 + i % 3) for i in range(30)], runner).results())
    assert Counter(r.request_id for r in results) == Counter(str(i) for i in range(30))
    assert {r.finish_reason for r in results} == {"stop"}
    assert runner.max_num_seqs == 2


def test_a_row_that_does_not_fit_alone_fails_and_the_rest_goes_on() -> None:
    def no_memory_for_a(runner: ScriptedRunner) -> None:
        if "a" in runner.active:
            raise torch.OutOfMemoryError("scripted")

    runner = ScriptedRunner(1, on_step=no_memory_for_a)
    results = list(scripted_generation([ask("a"), ask("b")], runner).results())
    assert [(r.request_id, r.reason) for r in results] == [("a", "out_of_memory"), ("b", None)]


def test_code2wav_out_of_memory_is_the_rows_error() -> None:
    requests = [ask("long", max_frames=5), ask("short", max_frames=2)]
    results = scripted_generation(requests, code2wav=ScriptedCode2Wav(too_big=5)).results()
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
        def evict(self) -> list[PreparedRow]:
            assert [ref() for ref in failed] == [None] * len(failed)
            return super().evict()

    results = list(scripted_generation([ask(name) for name in "abcd"], Watched(4, on_step=small_memory)).results())
    assert [result.finish_reason for result in results] == ["stop"] * 4
    assert len(failed) == 2


def test_no_memory_to_hand_codes_to_code2wav_is_the_rows_error() -> None:
    class Full(ScriptedCode2Wav):
        def submit(self, decoded: DecodedRow) -> None:
            if decoded.prepared.request.request_id == "a":
                raise torch.OutOfMemoryError("scripted")
            super().submit(decoded)

    results = scripted_generation([ask("a"), ask("b")], code2wav=Full()).results()
    assert {r.request_id: r.reason for r in results} == {"a": "out_of_memory", "b": None}


def test_a_row_that_lost_its_numbers_is_no_clip() -> None:
    class Overflowing(ScriptedRunner):
        def step(self) -> list[DecodedRow]:
            rows = super().step()
            return [replace(row, finish_reason="error") if len(row.codes) == 3 else row for row in rows]

    requests = [ask("a", max_frames=3), ask("b", max_frames=4)]
    results = {r.request_id: r for r in scripted_generation(requests, Overflowing()).results()}
    assert {name: r.reason for name, r in results.items()} == {"a": "non_finite", "b": None}
    assert "no longer finite after 3 frames" in results["a"].error


def test_requests_that_take_long_to_load_do_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_module, "BURST", 2)
    monkeypatch.setattr(generation_module, "TAKE_IN_S", 0.0)
    steps_before: dict[str, int] = {}
    runner = ScriptedRunner(8)

    class Watched(ScriptedPreparer):
        def load(self, request: SpeechRequest) -> None:
            steps_before[request.request_id] = runner.num_steps

    results = list(scripted_generation([ask(n, max_frames=9) for n in "abcdef"], runner, preparer=Watched()).results())
    assert len(results) == 6
    assert steps_before == {"a": 0, "b": 0, "c": 1, "d": 1, "e": 2, "f": 2}


def test_a_burst_is_loaded_then_encoded_then_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_module, "BURST", 3)
    steps: list[str] = []

    class Watched(ScriptedPreparer):
        def load(self, request: SpeechRequest) -> None:
            steps.append(f"load {request.request_id}")

        def encode_loaded(self) -> None:
            steps.append("encode")

        def prepare(self, request: SpeechRequest) -> PreparedRow:
            steps.append(f"prepare {request.request_id}")
            return super().prepare(request)

    requests = [ask(name) for name in "abcd"]
    results = list(scripted_generation(requests, ScriptedRunner(4), preparer=Watched()).results())
    assert Counter(r.request_id for r in results) == Counter("abcd")
    assert steps == [
        "load a", "load b", "load c", "encode", "prepare a", "prepare b", "prepare c", "load d", "encode", "prepare d",
    ]  # fmt: skip


def test_rows_that_will_only_wait_are_prepared_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_module, "BURST_AHEAD", 3)
    added: list[int] = []
    runner = ScriptedRunner(4, lambda r: added.append(len(r.active) + len(r.waiting)), look_ahead=500)
    requests = [ask(str(i), max_frames=50) for i in range(100)]
    results = list(scripted_generation(requests, runner).results())
    assert {r.finish_reason for r in results} == {"stop"} and len(results) == 100
    steps = added[:12]
    # The first burst is a whole one; then three come before every step, until all are there.
    assert steps == [min(100, generation_module.BURST + 3 * step) for step in range(1, 13)]


def test_ten_thousand_requests_through_sixteen_slots_leave_nothing() -> None:
    runner, code2wav, held = ScriptedRunner(16), ScriptedCode2Wav(), []

    def requests() -> Iterator[SpeechRequest | None]:
        for i in range(10_000):
            yield ask(str(i), max_frames=1 + i % 5, text="typed" if i % 97 == 0 else "fine")
            if i % 1_000 == 0:
                yield None

    generation = scripted_generation(requests(), runner, code2wav=code2wav, preparer=PickyPreparer())
    ends: Counter[str] = Counter()
    tracemalloc.start()
    for i, result in enumerate(generation.results()):
        ends[result.reason or result.finish_reason] += 1
        if i % 50 == 0:
            generation.cancel(str(i + 10))
        if i in (2_000, 9_000):
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sum(ends.values()) == 10_000
    assert set(ends) == {"stop", "ref_unreadable", "cancelled"}
    assert held[1] - held[0] < 50 * 7_000  # bytes: a queue more or less, but nothing of every request
    assert (runner.busy, code2wav.busy) == (False, False)
    assert (generation._owed, generation._in_flight, generation._cancelled) == (set(), set(), set())
    assert generation._watchdog._seen.keys() <= {str(i) for i in range(10_000)}
    assert len(generation._watchdog._seen) <= 16 + 32
