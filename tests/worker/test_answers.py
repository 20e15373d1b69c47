"""A request is lost when the engine goes on without it, and not while anything else may be the reason."""

from __future__ import annotations

import pytest

from tts_batch.ipc.messages import Deadlines
from tts_batch.worker.row_maker import PendingRequests


class Clock:
    """Answers at times that a test says."""

    def __init__(self, limit_frame_s: float = 0.0) -> None:
        self.now_s = 1_000.0
        self.pending = PendingRequests(Deadlines(10.0, limit_frame_s))

    def add(self, *names: str, max_frames: int = 100) -> None:
        for name in names:
            self.pending.add(name, max_frames, self.now_s)

    def answer(self, *names: str) -> None:
        for name in names:
            self.pending.answer(name, self.now_s)

    def lost_after(self, seconds: float) -> list[str]:
        self.now_s += seconds
        return self.pending.take_lost(self.now_s)


def test_what_is_not_answered_in_time_is_lost_once() -> None:
    clock = Clock()
    clock.add("a", "b")
    clock.answer("a")
    assert clock.lost_after(9.9) == []
    assert clock.lost_after(0.2) == ["b"]
    assert clock.lost_after(99) == []
    clock.add("b")  # added again, it has its time again
    assert clock.lost_after(9.9) == []
    assert clock.lost_after(0.2) == ["b"]


def test_the_largest_budget_gives_all_their_time() -> None:
    clock = Clock(limit_frame_s=0.5)
    clock.add("small", max_frames=2)
    clock.add("large", max_frames=40)
    assert clock.pending.limit_s == 30.0
    assert clock.lost_after(29) == []
    clock.answer("large")
    assert clock.lost_after(10.9) == []
    assert clock.lost_after(0.2) == ["small"]


def test_time_in_which_nothing_was_asked_for_does_not_count() -> None:
    clock = Clock()
    clock.add("a", "b")
    clock.now_s += 100
    clock.pending.excuse(clock.now_s)
    assert clock.lost_after(9.9) == []
    clock.answer("a")
    assert clock.lost_after(9.9) == []
    assert clock.lost_after(0.2) == ["b"]


@pytest.mark.parametrize("num_held", [1, 4])
def test_a_request_waits_while_others_are_answered_but_not_for_ever(num_held: int) -> None:
    clock = Clock()
    clock.add("a", *(f"first-{n}" for n in range(num_held)))
    clock.answer(*(f"first-{n}" for n in range(num_held)))
    answered, lost = num_held, []
    while not lost:
        clock.add(f"later-{answered}")
        clock.now_s += 6
        clock.answer(f"later-{answered}")
        answered += 1
        lost = clock.lost_after(0)
    assert lost == ["a"]
    assert answered == 2 * (num_held + 1) + 1
