"""What messages say of rows and settings, and that each can be sent."""

from __future__ import annotations

import pickle

import pytest

from tests.run.support import make_task
from tts_batch.ipc.messages import CheckLimits, ClipTask, NoMoreRows, RowEnd, RowsProgress, StopWorker
from tts_batch.records import Failure
from tts_batch.store.journal import Outcome


def test_a_row_adds_up_its_pieces() -> None:
    row = make_task("a", num_pieces=3, max_frames=50)
    assert (row.is_split, row.max_frames, row.expected_s) == (True, 150, 3.0)
    assert not make_task("a").is_split


def test_a_line_of_the_journal_says_how_a_row_ended() -> None:
    ok = Outcome("a", "f", "i", "ok", duration_s=1.5)
    assert RowEnd.of(ok) == RowEnd("a", "ok", 1.5)
    assert RowEnd.of(Outcome("b", "f", "i", "failed", reason="stalled")) == RowEnd("b", "failed", 0.0)


def test_limits_are_the_defaults_changed_by_what_is_given() -> None:
    assert CheckLimits.of({}) == CheckLimits()
    given = CheckLimits.of({"noise_flatness": None, "long_silence_s": 0.0})
    assert (given.noise_flatness, given.long_silence_s) == (None, 0.0)
    assert given.to_dict() == CheckLimits().to_dict() | {"noise_flatness": None, "long_silence_s": 0.0}


@pytest.mark.parametrize(
    "message",
    [NoMoreRows(), StopWorker(3.0), RowsProgress(("a",), (RowEnd("b", "ok", 1.0),)), Failure("stalled", "It.")],
)
def test_messages_arrive_equal(message: object) -> None:
    assert pickle.loads(pickle.dumps(message)) == message


def test_a_task_arrives_whole() -> None:
    task = ClipTask(make_task("a", num_pieces=2, attempts=2), (), 1, failure=Failure("stalled", "It."))
    arrived = pickle.loads(pickle.dumps(task))
    assert (arrived.row.pieces, arrived.row.sampling) == (task.row.pieces, task.row.sampling)
    assert (arrived.failure, arrived.num_attempts) == (task.failure, 1)
