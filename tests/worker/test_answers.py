"""A request is lost when the engine goes on without it, and not while anything else may be the reason."""

from __future__ import annotations

import pytest

from tts_batch.worker.answers import Answers


class Clock:
    """Answers at times that a test says."""

    def __init__(self, limit_frame_s: float = 0.0) -> None:
        self.now_s = 1_000.0
        self.answers = Answers(10.0, limit_frame_s)

    def pull(self, *names: str, max_frames: int = 100) -> None:
        self.answers.ask(self.now_s)
        for name in names:
            self.answers.pull(name, max_frames, self.now_s)

    def answer(self, *names: str) -> None:
        for name in names:
            self.answers.receive(name)
            self.answers.received(self.now_s)

    def lost_after(self, seconds: float, *, asks: bool = True) -> list[str]:
        self.now_s += seconds
        if asks:
            self.answers.ask(self.now_s)
        return self.answers.take_lost(self.now_s)


def test_what_is_not_answered_in_time_is_lost_once() -> None:
    clock = Clock()
    clock.pull("a", "b")
    clock.answer("a")
    assert clock.lost_after(9.9) == []
    assert clock.lost_after(0.2) == ["b"]
    assert clock.lost_after(99) == []
    clock.pull("b")  # pulled again, it has its time again
    assert clock.lost_after(9.9) == []
    assert clock.lost_after(0.2) == ["b"]


def test_the_largest_budget_gives_all_their_time() -> None:
    clock = Clock(limit_frame_s=0.5)
    clock.pull("small", max_frames=2)
    clock.pull("large", max_frames=40)
    assert clock.answers.limit_s == 30.0
    assert clock.lost_after(29) == []
    clock.answer("large")
    assert clock.lost_after(10.9) == []
    assert clock.lost_after(0.2) == ["small"]


def test_an_engine_that_does_not_ask_has_lost_nothing() -> None:
    clock = Clock()
    clock.pull("a")
    assert clock.lost_after(100, asks=False) == []
    assert clock.lost_after(1) == ["a"]


def test_the_receiver_s_own_time_does_not_count() -> None:
    clock = Clock()
    clock.pull("a", "b")
    clock.answers.receive("a")
    assert clock.lost_after(100) == []
    clock.answers.received(clock.now_s)
    assert clock.lost_after(9.9) == []
    assert clock.lost_after(0.2) == ["b"]


@pytest.mark.parametrize("num_held", [1, 4])
def test_a_request_waits_while_others_are_answered_but_not_for_ever(num_held: int) -> None:
    clock = Clock()
    clock.pull("a", *(f"first-{n}" for n in range(num_held)))
    clock.answer(*(f"first-{n}" for n in range(num_held)))
    answered, lost = num_held, []
    while not lost:
        clock.pull(f"later-{answered}")
        clock.now_s += 6
        clock.answer(f"later-{answered}")
        answered += 1
        lost = clock.lost_after(0)
    assert lost == ["a"]
    assert answered == 2 * (num_held + 1) + 1
