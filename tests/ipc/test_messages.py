"""What messages say of rows and settings, and that each can be sent."""

from __future__ import annotations

import pickle

import pytest

from tests.run.support import make_request
from tts_batch.ipc.messages import ActiveRow, CheckLimits, NoMoreRows, RowsProgress, StopWorker, ended_rows
from tts_batch.records import Failure
from tts_batch.store.journal import Outcome


def test_a_row_adds_up_its_pieces() -> None:
    row = make_request("a", num_pieces=3, max_frames=50)
    assert (row.is_split, row.max_frames, row.expected_s) == (True, 150, 3.0)
    assert not make_request("a").is_split


def test_a_line_of_the_journal_says_how_a_row_ended() -> None:
    lines = [Outcome("a", "f", "i", "ok", duration_s=1.5), Outcome("b", "f", "i", "failed", reason="stalled")]
    assert ended_rows(lines) == {"a": 1.5, "b": None}


def test_limits_are_the_defaults_changed_by_what_is_given() -> None:
    assert CheckLimits.of({}) == CheckLimits()
    given = CheckLimits.of({"noise_flatness": None, "long_silence_s": 0.0})
    assert (given.noise_flatness, given.long_silence_s) == (None, 0.0)
    assert given.to_dict() == CheckLimits().to_dict() | {"noise_flatness": None, "long_silence_s": 0.0}


@pytest.mark.parametrize(
    "message",
    [NoMoreRows(), StopWorker(3.0), RowsProgress(("a",), {"b": 1.0, "c": None}), Failure("stalled", "It.")],
)
def test_messages_arrive_equal(message: object) -> None:
    assert pickle.loads(pickle.dumps(message)) == message


def test_a_row_arrives_whole() -> None:
    row = ActiveRow(make_request("a", num_pieces=2, attempts=2))
    row.pieces[0].begin_attempt(row.request)
    row.fail(Failure("stalled", "It."), 1)
    arrived = pickle.loads(pickle.dumps(row))
    assert (arrived.request.pieces, arrived.request.sampling) == (row.request.pieces, row.request.sampling)
    assert (arrived.failure, arrived.failed_piece, arrived.num_attempts) == (row.failure, 1, 1)
    assert [piece.num_attempts for piece in arrived.pieces] == [1, 0]
