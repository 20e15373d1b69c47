"""A worker's queue: in which order pieces are pulled, and what is left of a row that ends."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from tts_batch.engine.request import SamplingParams, SpeechRequest, SpeechResult
from tts_batch.worker.pieces import piece_id
from tts_batch.worker.rows import ActivePiece, ActiveRow
from tts_batch.worker.work_queue import WorkQueue

GOOD = SpeechResult("", None, 24_000, None, 5, "stop", True)


def make_row(name: str, count: int = 1, attempts: int = 2) -> ActiveRow:
    row = ActiveRow(name, "fingerprint", "digest", [])
    for number in range(count):
        request_id = piece_id(name, number) if count > 1 else name
        request = SpeechRequest(request_id, "Hello.", "custom_voice", 0, 100, SamplingParams())
        row.pieces.append(ActivePiece(row, number, request, 1.0, list(range(attempts))))
    return row


def filled(*rows: ActiveRow) -> WorkQueue:
    queue = WorkQueue()
    for row in rows:
        queue.add(row)
    return queue


def pull(queue: WorkQueue, count: int = 100, *, again: bool = True) -> list[ActivePiece]:
    pulled = []
    while len(pulled) < count and (piece := queue.pull(again=again)) is not None:
        piece.begin_attempt()
        pulled.append(piece)
    return pulled


def ids(pieces: list[ActivePiece]) -> list[str]:
    return [piece.id.replace("\x1f", "/") for piece in pieces]


def test_rows_are_pulled_in_order_and_what_is_tried_again_comes_first() -> None:
    queue = filled(make_row("a", 2), make_row("b"))
    first, second = pull(queue, 2)
    assert ids([first, second]) == ["a/1", "a/2"]
    second.result = GOOD  # of a row that failed as a whole
    queue.try_again([second])
    assert second.result is None
    assert queue.find(second.id) is None, "the engine has answered it"
    assert ids(queue.in_engine) == ["a/1"]
    assert ids(pull(queue, 1, again=False)) == ["b"]
    assert ids(pull(queue)) == ["a/2"]
    assert queue.find(second.id) is second


def test_an_answer_counts_once_and_only_while_its_row_has_not_ended() -> None:
    row = make_row("a", 2)
    queue = filled(row)
    first, second = pull(queue)
    assert queue.answer(first.id) is first
    assert queue.answer(first.id) is None
    assert queue.find(first.id) is None
    assert queue.answer("nobody") is None
    assert ids(queue.in_engine) == ["a/2"]
    assert queue.is_answered(first)
    assert not queue.is_answered(second)
    queue.try_again([first])
    assert queue.answer(first.id) is None, "the engine does not have it yet"
    pull(queue)
    assert queue.answer(first.id) is first
    assert queue.forget(row) == [second.id], "the engine has answered the first"
    assert not queue.is_answered(first)
    assert not queue.take_dropped(first.id)


def test_the_engine_is_idle_while_its_last_answer_is_examined() -> None:
    queue = filled(make_row("a"), make_row("b", attempts=1))
    assert not queue.is_idle, "it may pull"
    first, second = pull(queue)
    queue.answer(first.id)
    assert not queue.is_idle, "it has another one"
    queue.answer(second.id)
    assert queue.is_idle
    assert queue
    assert queue.may_grow, "the first may be tried again"
    queue.try_again([first])
    assert not queue.is_idle
    pull(queue)
    for piece in (first, second):
        queue.answer(piece.id)
        assert queue.is_answered(piece)
        queue.end(piece)
        assert not queue.is_answered(piece)
    assert queue.is_idle
    assert not queue


def test_it_is_empty_when_every_row_has_ended() -> None:
    queue = filled(make_row("a"))
    assert queue
    (piece,) = pull(queue)
    assert queue
    queue.try_again([piece])
    assert queue
    pull(queue)
    queue.end(piece)
    assert not queue


def test_more_may_come_while_an_attempt_is_left() -> None:
    queue = filled(make_row("a", attempts=2))
    (piece,) = pull(queue)
    assert queue.may_grow
    queue.try_again([piece])
    assert queue.may_grow
    pull(queue)
    assert not queue.may_grow
    queue = filled(make_row("a"))
    (piece,) = pull(queue)
    piece.row.overtime = True
    assert not queue.may_grow


def test_nothing_is_left_of_a_row_that_ends() -> None:
    row = make_row("a", 5)
    queue = filled(row, make_row("b"))
    failed, good, running, again = pull(queue, 4)
    good.result = GOOD
    queue.end(good)
    queue.try_again([again])
    queue.end(failed)
    assert queue.forget(row) == [running.id]
    assert queue.take_dropped(running.id)
    assert not queue.take_dropped(running.id), "it is answered once"
    assert not queue.take_dropped(again.id)
    assert ids(pull(queue)) == ["b"]


def test_a_stop_keeps_the_rows_that_have_begun() -> None:
    queue = filled(make_row("a", 3), make_row("b", 2))
    pull(queue, 1)
    queue.drop_waiting(but_begun=True)
    assert ids(pull(queue, 1)) == ["a/2"]
    queue.drop_waiting()
    assert pull(queue) == []
    assert ids(queue.active) == ["a/1", "a/2"]


@pytest.mark.parametrize("count", [1, 2])
def test_the_audio_of_a_row_that_ended_is_given_back_at_once(count: int) -> None:
    row = make_row("a", count)
    queue = filled(row)
    gc.disable()
    try:
        audio = np.zeros(10, np.float32)
        for piece in pull(queue):
            piece.result = replace(GOOD, audio=audio)
        held = weakref.ref(audio)
        queue.forget(row)
        del row, piece, audio
        assert held() is None
    finally:
        gc.enable()
