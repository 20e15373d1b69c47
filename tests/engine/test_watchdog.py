"""The watchdog: what is stuck, what is only slow, and what may wait."""

from __future__ import annotations

import pytest

from tts_batch.engine import watchdog as watchdog_module
from tts_batch.engine.watchdog import Watchdog, all_stacks


class Clock:
    """Stands in for the `time` that the watchdog reads."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watchdog_module, "time", clock)
    return clock


def watch(clock: Clock, *sights: tuple[set[str], dict[str, int], dict[str, int]], step_s: float = 5.0) -> list[str]:
    """Look at one sight after another, `step_s` apart; the timeout is 30 s. Returns what the last look finds."""
    watchdog, stuck = Watchdog(30.0), []
    for owed, decoding, voicing in sights:
        assert stuck == []
        clock.now_s += step_s
        stuck = watchdog.look(owed, decoding.items(), voicing.items())
    return stuck


def test_who_is_stuck(clock: Clock) -> None:
    still = ({"a"}, {"a": 7}, {})
    assert watch(clock, *[still] * 7) == []
    assert watch(clock, *[still] * 8) == ["a"]
    assert watch(clock, *[({"a"}, {}, {})] * 8) == ["a"]  # no stage holds it
    assert watch(clock, *[({"a"}, {}, {"a": 1})] * 8) == ["a"]
    assert watch(clock, *[({"a"}, {"a": -1}, {})] * 8) == ["a"]
    assert watch(clock, *[(set(), {"b": 7}, {"c": 1})] * 8) == []  # no caller waits for these


def test_who_moves_or_may_wait_is_not(clock: Clock) -> None:
    assert watch(clock, *[({"a"}, {"a": frame}, {}) for frame in range(20)]) == []
    assert watch(clock, *[({"a", "b"}, {"a": frame, "b": -1}, {}) for frame in range(20)]) == []
    assert watch(clock, *[({"a", "b"}, {"a": frame, "b": 5}, {}) for frame in range(8)]) == ["b"]
    coming_and_going = [({"a", str(i)}, {}, {"a": 1, str(i): 1}) for i in range(20)]
    assert watch(clock, *coming_and_going) == []
    # In another stage the clock starts anew.
    assert watch(clock, *[({"a"}, {"a": 3}, {})] * 7, *[({"a"}, {}, {"a": 3})] * 7) == []


def test_few_looks_are_slow_work_and_not_stuck(clock: Clock) -> None:
    still = ({"a"}, {"a": 7}, {})
    assert watch(clock, *[still] * 3, step_s=40.0) == []
    assert watch(clock, *[still] * 4, step_s=40.0) == ["a"]


def test_time_spent_waiting_for_the_caller_does_not_count(clock: Clock) -> None:
    watchdog = Watchdog(30.0)
    for _ in range(20):
        with watchdog.excused():
            clock.now_s += 10.0
        clock.now_s += 1.0
        assert watchdog.look({"a"}, [("a", 7)], []) == []


def test_units_of_work_are_overdue_after_the_timeout(clock: Clock) -> None:
    watchdog = Watchdog(30.0)
    assert watchdog.overdue is None
    with watchdog.unit("prepare", "a"):
        clock.now_s += 30.0
        assert watchdog.overdue is None
        clock.now_s += 1.0
        unit = watchdog.overdue
        assert (unit.name, unit.request_id) == ("prepare", "a")
    assert watchdog.overdue is None


def test_looks_several_times_per_timeout(clock: Clock) -> None:
    watchdog = Watchdog(30.0)
    assert watchdog.wants_to_look
    watchdog.look([], [], [])
    assert not watchdog.wants_to_look
    clock.now_s += 4.0
    assert watchdog.wants_to_look


def test_stacks_name_threads_and_lines() -> None:
    assert "thread MainThread:" in all_stacks()
    assert "test_stacks_name_threads_and_lines" in all_stacks()
