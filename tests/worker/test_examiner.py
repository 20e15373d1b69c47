"""Results are examined side by side and finished in order; a slow end holds them up, an error ends them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.run.support import wait_until
from tests.worker.test_work_queue import GOOD, make_row
from tts_batch.engine.request import SpeechResult
from tts_batch.worker.checks import Examined
from tts_batch.worker.examiner import EXAMINING_THREADS, MAX_BETWEEN, Examiner
from tts_batch.worker.rows import ActivePiece

TIMEOUT_S = 20.0


class Line:
    """An examiner whose pieces are examined and finished when a test says so, and what became of them."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.finished: list[str] = []
        self.errors: list[Exception] = []
        self.threads: set[str] = set()
        self.may_examine = {name: threading.Event() for name in map(str, range(200))}
        self.may_finish = threading.Event()
        self.may_finish.set()
        self.examiner = Examiner(self.examine, self.finish, self.errors.append)

    def examine(self, piece: ActivePiece, result: SpeechResult) -> tuple[SpeechResult, Examined]:
        self.begun.append(piece.id)
        assert self.may_examine[piece.id].wait(TIMEOUT_S)
        if piece.id == "bad":
            raise ValueError("it cannot be examined")
        return result, Examined(None, checks={"of": piece.id})

    def finish(self, piece: ActivePiece, result: SpeechResult, examined: Examined) -> None:
        assert self.may_finish.wait(TIMEOUT_S)
        assert (result, examined.checks) == (GOOD, {"of": piece.id})
        if piece.id == "unfinishable":
            raise OSError("it cannot be finished")
        self.threads.add(threading.current_thread().name)
        self.finished.append(piece.id)

    def put(self, *names: Any, ready: bool = True) -> None:
        for name in map(str, names):
            event = self.may_examine.setdefault(name, threading.Event())
            if ready:
                event.set()
            self.examiner.put(make_row(name).pieces[0], GOOD)

    def let_go(self) -> None:
        self.may_finish.set()
        for event in self.may_examine.values():
            event.set()


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.let_go()
    line.examiner.close()


def test_all_is_finished_in_order_on_one_thread(line: Line) -> None:
    line.put(0, ready=False)
    line.put(*range(1, EXAMINING_THREADS + 3))
    wait_until(lambda: len(line.begun) == EXAMINING_THREADS + 3, TIMEOUT_S)
    assert line.finished == [], "the first is not examined yet"
    line.let_go()
    line.put(*range(EXAMINING_THREADS + 3, 100))
    line.examiner.close()
    assert line.finished == [str(number) for number in range(100)]
    assert len(line.threads) == 1
    assert line.errors == []


def test_several_are_examined_at_once(line: Line) -> None:
    line.put(*range(EXAMINING_THREADS + 1), ready=False)
    wait_until(lambda: len(line.begun) == EXAMINING_THREADS, TIMEOUT_S)
    assert sorted(line.begun) == [str(number) for number in range(EXAMINING_THREADS)]


def test_who_does_not_finish_holds_up_who_gives(line: Line) -> None:
    line.may_finish.clear()
    giver = threading.Thread(target=line.put, args=range(MAX_BETWEEN + 10))
    giver.start()
    wait_until(lambda: len(line.begun) >= MAX_BETWEEN + 1, TIMEOUT_S)
    giver.join(0.3)
    assert giver.is_alive()
    assert len(line.begun) <= MAX_BETWEEN + 2, "one is being finished, and one stands at the door"
    line.may_finish.set()
    giver.join(TIMEOUT_S)
    assert not giver.is_alive()
    assert line.examiner.wait_s > 0.2


@pytest.mark.parametrize(("name", "words"), [("bad", "it cannot be examined"), ("unfinishable", "cannot be finished")])
def test_an_error_ends_it_after_all_before(line: Line, name: str, words: str) -> None:
    line.put(0, 1, ready=False)
    line.put(name, 2, 3)
    wait_until(lambda: name in line.begun and len(line.begun) >= 4, TIMEOUT_S)
    assert line.errors == []
    line.let_go()
    wait_until(lambda: bool(line.errors), TIMEOUT_S)
    line.examiner.close()
    assert line.finished == ["0", "1"]
    assert [str(error) for error in line.errors] == [str(line.errors[0])]
    assert words in str(line.errors[0])
