"""Whatever an engine does, every row is finished once for each attempt, ended once, or dropped by a stop."""

from __future__ import annotations

import gc
import time
import weakref
from collections import Counter
from dataclasses import dataclass, field, replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.run.support import make_request
from tts_batch.engine.errors import DuplicateRequest, EngineError
from tts_batch.engine.request import SpeechRequest, SpeechResult
from tts_batch.ipc.messages import ActiveRow, Deadlines, RetryPieces
from tts_batch.worker.row_maker import RowMaker

PATIENT = Deadlines(answer_s=1e9, answer_frame_s=0.0)


def good(request_id: str) -> SpeechResult:
    return SpeechResult(request_id, np.ones(1_920, np.float32), 24_000, None, 1, "stop", True)


@dataclass
class ScriptedEngine:
    """Holds up to `slots` requests until a test has it end some.

    An aborted one ends at the next step, unless the engine is deaf.
    """

    slots: int = 4
    is_deaf: bool = False
    repeats: bool = False  # the next step returns again what others have returned
    seeds: dict[str, list[int]] = field(default_factory=dict)  # of the requests that it got, by id
    held: dict[str, SpeechRequest] = field(default_factory=dict)
    aborted: list[str] = field(default_factory=list)
    extra: list[SpeechResult] = field(default_factory=list)
    ending: list[SpeechResult] = field(default_factory=list)
    sample_rate: int = 24_000
    info: dict[str, str] = field(default_factory=dict)

    @property
    def num_wanted(self) -> int:
        return self.slots - len(self.held)

    def add_request(self, request: SpeechRequest) -> None:
        if request.request_id in self.held:
            raise DuplicateRequest(request.request_id)
        self.held[request.request_id] = request
        self.seeds.setdefault(request.request_id, []).append(request.seed)

    def abort_request(self, request_id: str) -> None:
        if request_id in self.held and not self.is_deaf:
            self.aborted.append(request_id)

    def end(self, request_id: str, **changes: object) -> None:
        self.ending.append(replace(good(request_id), **changes))  # type: ignore[arg-type]

    def step(self, timeout_s: float) -> list[SpeechResult]:
        cancelled = {name: replace(good(name), audio=None, finish_reason="cancelled") for name in self.aborted}
        results = [*(result for result in self.ending if result.request_id not in cancelled), *cancelled.values()]
        self.ending, self.aborted = [], []
        for result in results:
            self.held.pop(result.request_id, None)
        if self.repeats:
            self.extra += [good(name) for name in self.seeds if name not in self.held]
        extra, self.extra, self.repeats = self.extra, [], False
        return [*results, *extra]

    def close(self) -> None: ...


@dataclass
class Rows:
    """A RowMaker, its engine, and what it has handed over to be finished."""

    engine: ScriptedEngine = field(default_factory=ScriptedEngine)
    deadlines: Deadlines = PATIENT
    finishing: dict[str, ActiveRow] = field(default_factory=dict)
    finished: Counter[str] = field(default_factory=Counter)
    begun: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.maker = RowMaker(self.engine, self.finish, self.deadlines, self.begun.extend)

    def add(self, *names: str, **options: int) -> None:
        for name in names:
            self.maker.add(ActiveRow(make_request(name, **options)))

    def finish(self, row: ActiveRow) -> None:
        assert row.id not in self.finishing, "it is being finished"
        self.finishing[row.id] = row
        self.finished[row.id] += 1

    def feed_and_step(self) -> None:
        self.maker.feed()
        self.maker.step(0.0)

    def end_row(self, name: str) -> None:
        del self.finishing[name]
        self.maker.row_ended(name)

    def retry(self, name: str, *pieces: int) -> None:
        del self.finishing[name]
        self.maker.retry(RetryPieces(name, pieces, ({"reason": "silent_output"},)))


FINISH_REASONS = ["stop", "stop", "length", "error", "cancelled", "no such reason"]


class Script:
    """Random events for a RowMaker, and what must hold whatever they are."""

    def __init__(self, data: st.DataObject, rows: Rows, names: list[str]) -> None:
        self.data, self.rows, self.maker, self.engine = data, rows, rows.maker, rows.engine
        self.now_s = 1_000.0
        self.live = set(names)
        self.ended: list[str] = []
        self.is_stopping = False

    def play(self) -> None:
        """Let one thing happen."""
        events = ["end", "end", "end", "finish", "finish", "again", "junk", "later", "stop", "drop"]
        match self.data.draw(st.sampled_from(events)):
            case "end" if self.engine.held:
                self.end_request(self.data.draw(st.sampled_from(FINISH_REASONS)))
            case "finish" if self.rows.finishing:
                self.finish_row()
            case "again":
                self.engine.repeats = True
            case "junk":
                self.engine.extra += [good("unknown"), None, "r0", replace(good("unknown"), request_id=["r0"])]  # type: ignore[list-item, arg-type]
            case "later":
                self.now_s += self.data.draw(st.sampled_from([1.0, 11.0, 40.0]))
            case "stop" if self.data.draw(st.integers(0, 9)) == 0:
                self.is_stopping = True
                self.maker.stop()
            case "drop" if self.is_stopping:
                self.maker.drop_unfinished()

    def end_request(self, finish_reason: str) -> None:
        name = self.data.draw(st.sampled_from(sorted(self.engine.held)))
        if all(result.request_id != name for result in self.engine.ending):
            self.engine.end(name, finish_reason=finish_reason)

    def finish_row(self) -> None:
        """As finish_clip does: pieces that failed are tried again, if each of them may be."""
        name = self.data.draw(st.sampled_from(sorted(self.rows.finishing)))
        made = [piece for piece in self.rows.finishing[name].pieces if piece.result is not None]
        failed = [piece for piece in made if piece.result and piece.result.finish_reason != "stop"]
        if not failed and self.data.draw(st.booleans()):
            failed = made  # each is good, and the whole is not
        if failed and not any(piece.is_last_attempt for piece in failed):
            self.rows.retry(name, *(piece.number for piece in failed))
            return
        if name in self.live:
            self.ended.append(name)
            self.live.discard(name)
        self.rows.end_row(name)

    def go_on(self) -> None:
        """What a worker does again and again."""
        self.maker.feed()
        assert len(self.engine.held) <= self.engine.slots
        self.maker.step(0.0)
        of_ended = {name for name in self.engine.held if name.partition("\x1f")[0] not in self.live}
        assert self.engine.is_deaf or of_ended <= set(self.engine.aborted), "a request of a row that ended goes on"


@given(st.data(), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.booleans(), st.sampled_from([None, 25.0]))
@settings(max_examples=150, deadline=None)
def test_every_row_ends_once(
    data: st.DataObject, slots: int, num_pieces: int, attempts: int, is_deaf: bool, row_s: float | None
) -> None:
    """Results come in any order, twice, late or never; rows are retried, aborted, over their time; a stop comes."""
    rows = Rows(ScriptedEngine(slots, is_deaf), Deadlines(answer_s=10.0, answer_frame_s=0.0, row_s=row_s))
    names = [f"r{number}" for number in range(data.draw(st.integers(1, 6)))]
    script = Script(data, rows, names)
    with mock.patch.object(time, "monotonic", lambda: script.now_s):
        rows.add(*names, num_pieces=num_pieces, attempts=attempts)
        for _ in range(data.draw(st.integers(0, 60))):
            script.play()
            script.go_on()
        for _ in range(100):  # from now on the engine does what it should
            for request_id in rows.engine.held:
                rows.engine.end(request_id)
            if rows.finishing:
                script.finish_row()
            script.go_on()
    assert not rows.maker.has_rows
    assert not rows.maker.is_engine_busy
    assert len(set(script.ended)) == len(script.ended)
    assert script.is_stopping or not script.live, "rows are lost"
    assert len(set(rows.begun)) == len(rows.begun)
    for seeds in rows.engine.seeds.values():
        assert seeds == list(range(seeds[0], seeds[0] + len(seeds))), "each attempt has the next seed"
        assert len(seeds) <= attempts


def test_a_row_is_reported_before_its_first_request_is_added() -> None:
    rows = Rows()
    seen: list[tuple[list[str], list[str]]] = []
    add = rows.engine.add_request

    def note(request: SpeechRequest) -> None:
        seen.append((list(rows.begun), list(rows.engine.held)))
        add(request)

    rows.engine.add_request = note  # type: ignore[method-assign]
    rows.add("a", "b")
    rows.maker.feed()
    assert seen[0] == (["a", "b"], [])


def test_rows_go_in_order_and_what_is_tried_again_goes_first() -> None:
    rows = Rows(ScriptedEngine(slots=3))
    rows.add("a", num_pieces=2, attempts=2)
    rows.add("b", "c", attempts=2)
    rows.maker.feed()
    assert [request.text for request in rows.engine.held.values()] == ["Some words."] * 3
    first, second, third = rows.engine.held
    assert (first.partition("\x1f")[0], second.partition("\x1f")[0], third) == ("a", "a", "b")
    rows.engine.end("b", finish_reason="length")
    rows.maker.step(0.0)
    rows.retry("b", 0)
    rows.maker.feed()
    assert list(rows.engine.held) == [first, second, "b"]
    rows.engine.end("b")
    rows.feed_and_step()
    rows.maker.feed()
    assert list(rows.engine.held) == [first, second, "c"]


def test_it_knows_what_is_under_way() -> None:
    rows = Rows(ScriptedEngine(slots=1))
    maker = rows.maker
    assert (maker.has_rows, maker.is_making, maker.is_engine_busy, maker.wants_rows) == (False, False, False, True)
    rows.add("a")
    assert (maker.has_rows, maker.is_making, maker.is_engine_busy, maker.wants_rows) == (True, True, False, False)
    maker.feed()
    assert (maker.is_making, maker.is_engine_busy, maker.wants_rows) == (True, True, False)
    rows.engine.end("a")
    maker.step(0.0)
    assert (maker.has_rows, maker.is_making, maker.is_engine_busy, maker.wants_rows) == (True, False, False, True)
    rows.end_row("a")
    assert (maker.has_rows, maker.num_results) == (False, 1)


@pytest.mark.parametrize("num_pieces", [1, 2])
def test_the_audio_of_a_row_that_ended_is_released_at_once(num_pieces: int) -> None:
    rows = Rows()
    rows.add("a", num_pieces=num_pieces)
    rows.maker.feed()
    for name in rows.engine.held:
        rows.engine.end(name)
    gc.disable()
    try:
        rows.maker.step(0.0)
        held = [weakref.ref(result.audio) for result in rows.finishing["a"].results]
        assert all(audio() is not None for audio in held)
        rows.end_row("a")
        assert [audio() for audio in held] == [None] * num_pieces
    finally:
        gc.enable()


def test_only_the_pieces_at_fault_are_made_again_with_their_next_seed() -> None:
    rows = Rows()
    rows.add("a", num_pieces=2, attempts=2)
    rows.maker.feed()
    first, second = rows.engine.held
    rows.engine.end(first)
    rows.engine.end(second, finish_reason="length")
    rows.maker.step(0.0)
    assert [(piece.num_attempts, piece.seed, piece.is_last_attempt) for piece in rows.finishing["a"].pieces] == [
        (1, 100, False), (1, 200, False),
    ]  # fmt: skip
    rows.retry("a", 1)
    rows.maker.feed()
    assert {name: request.seed for name, request in rows.engine.held.items()} == {second: 201}
    rows.engine.end(second)
    rows.maker.step(0.0)
    row = rows.finishing["a"]
    assert [(piece.num_attempts, piece.seed) for piece in row.pieces] == [(1, 100), (2, 201)]
    assert (row.num_attempts, len(row.failed_attempts)) == (2, 1)


def test_a_piece_that_failed_for_good_ends_its_row_and_aborts_the_rest() -> None:
    rows = Rows(ScriptedEngine(slots=2))
    rows.add("a", num_pieces=4)
    rows.maker.feed()
    first, second = rows.engine.held
    rows.engine.end(first, finish_reason="error", audio=None)
    rows.maker.step(0.0)
    assert [piece.number for piece in rows.finishing["a"].pieces if piece.result is not None] == [0]
    assert rows.engine.aborted == [second]
    rows.feed_and_step()
    assert not rows.engine.held, "its other pieces are not made"


def test_a_lost_request_fails_its_row_and_a_late_result_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    rows = Rows(deadlines=Deadlines(answer_s=10.0, answer_frame_s=0.1))
    rows.add("a", "b", max_frames=50)
    rows.feed_and_step()
    now[0] += 14.0
    rows.engine.end("b")
    rows.maker.step(0.0)
    rows.end_row("b")
    now[0] += 15.1
    rows.maker.step(0.0)
    failure = rows.finishing["a"].failure
    assert failure is not None
    assert (failure.reason, failure.message) == (
        "stalled", "The engine returned no result for it within 15 s, and went on.",
    )  # fmt: skip
    rows.end_row("a")
    rows.engine.end("a")
    rows.maker.step(0.0)
    assert rows.finished == {"a": 1, "b": 1}


def test_time_in_which_results_cannot_be_taken_is_no_ones_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    rows = Rows(deadlines=Deadlines(answer_s=10.0, answer_frame_s=0.0))
    rows.add("a")
    rows.feed_and_step()
    now[0] += 100.0
    rows.maker.pause()
    rows.maker.step(0.0)
    assert not rows.finishing


def test_a_row_over_its_time_fails_with_its_first_unfinished_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    rows = Rows(deadlines=replace(PATIENT, row_s=5.0))
    rows.add("a", num_pieces=3)
    rows.maker.feed()
    rows.engine.end(next(iter(rows.engine.held)))
    rows.maker.step(0.0)
    now[0] += 5.1
    rows.maker.step(0.0)
    row = rows.finishing["a"]
    assert row.failure is not None
    assert (row.failure.reason, row.failed_piece, row.results) == ("time_limit", 1, [])


def test_the_time_of_a_row_does_not_run_while_others_are_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    rows = Rows(ScriptedEngine(slots=1), replace(PATIENT, row_s=5.0))
    names = [f"r{number}" for number in range(20)]
    rows.add(*names)
    for name in names:
        rows.maker.feed()
        now[0] += 3.0
        rows.engine.end(name)
        rows.maker.step(0.0)
        assert rows.finishing[name].failure is None
        rows.end_row(name)
    assert not rows.maker.has_rows


def test_a_stop_lets_begun_rows_end_and_leaves_the_others_pending() -> None:
    rows = Rows(ScriptedEngine(slots=2))
    rows.add("a", "b", "c", attempts=2)
    rows.maker.feed()
    rows.maker.stop()
    rows.engine.end("a")
    rows.engine.end("b", finish_reason="length")
    rows.feed_and_step()
    assert not rows.engine.held
    rows.end_row("a")
    rows.retry("b", 0)  # it may be tried again, so it stays pending
    assert not rows.maker.has_rows
    assert set(rows.finished) == {"a", "b"}


def test_rows_are_dropped_when_a_stop_takes_too_long() -> None:
    rows = Rows(ScriptedEngine(slots=2))
    rows.add("a", "b")
    rows.maker.feed()
    rows.engine.end("a")
    rows.maker.step(0.0)
    rows.maker.stop()
    rows.maker.drop_unfinished()
    assert rows.engine.aborted == ["b"]
    rows.maker.step(0.0)
    assert set(rows.finished) == {"a"}, "what is complete is finished"
    rows.end_row("a")
    assert not rows.maker.has_rows


def test_a_stop_passes_over_a_row_that_ended_while_it_waited_for_another_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    rows = Rows(ScriptedEngine(slots=1, is_deaf=True), replace(PATIENT, row_s=5.0))
    rows.add("a", "b", "c", attempts=2)
    rows.maker.feed()
    rows.engine.end("a", finish_reason="length")
    rows.feed_and_step()
    rows.maker.feed()
    rows.retry("a", 0)
    now[0] += 5.1
    rows.maker.step(0.0)
    assert {name: row.failure and row.failure.reason for name, row in rows.finishing.items()} == {
        "a": "time_limit", "b": "time_limit",
    }  # fmt: skip
    rows.end_row("a")
    rows.maker.stop()
    rows.end_row("b")
    assert not rows.maker.has_rows
    rows.engine.end("b")
    rows.feed_and_step()
    assert not rows.maker.is_engine_busy
    assert rows.begun == ["a", "b"]


def test_a_broken_device_ends_the_engine() -> None:
    rows = Rows()
    rows.add("a")
    rows.maker.feed()
    rows.engine.end("a", audio=None, finish_reason="error", error="CUDA error: device-side assert triggered")
    with pytest.raises(EngineError, match="its device is broken"):
        rows.maker.step(0.0)


def test_an_engine_that_uses_its_buffer_again_changes_no_clip() -> None:
    rows = Rows()
    rows.add("a")
    rows.maker.feed()
    audio = np.ones(1_920, np.float32)
    rows.engine.end("a", audio=audio)
    rows.maker.step(0.0)
    audio[:] = 0
    kept = rows.finishing["a"].results[0].audio
    assert kept is not None and kept.min() == 1.0
