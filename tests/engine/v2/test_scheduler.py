"""The scheduler: no slot or page is held twice or lost, the longest go first, no row starves, the tail shrinks."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.asking import ask
from tests.engine.scripted import prepared_row
from tts_batch.engine.runner import EngineRow
from tts_batch.engine.v2.scheduler import PagePool, Scheduler


def row(name: object, frames: int = 1) -> EngineRow:
    return prepared_row(ask(str(name), max_frames=frames))


def check(scheduler: Scheduler) -> None:
    """Slots and pages are each in one place."""
    held = [page for active in scheduler.active.values() for page in active.pages]
    free = scheduler.pages._free
    assert sorted(held + free) == list(range(scheduler.pages.num_pages))
    assert all(slot == active.slot for slot, active in scheduler.active.items())
    assert sorted([*scheduler.active, *scheduler._free_slots]) == list(
        range(len(scheduler._free_slots) + len(scheduler.active))
    )
    for active in scheduler.active.values():
        assert len(active.pages) == scheduler.num_pages_for(active)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 100)),
        st.tuples(st.sampled_from(["admit", "release", "cancel", "evict", "shrink"]), st.integers(0, 5)),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(ACTIONS)
def test_against_a_model(actions: list[tuple[str, int]]) -> None:
    scheduler = Scheduler(6, PagePool(12), page_size=16, look_ahead=4)
    waiting, active, ended = set(), set(), set()
    for i, (action, n) in enumerate(actions):
        if action == "add" and scheduler.room > 0:
            scheduler.add(row(i, n))
            waiting.add(str(i))
        elif action == "admit":
            admitted = {a.request_id for a in scheduler.admit(0.0)}
            assert admitted <= waiting
            waiting, active = waiting - admitted, active | admitted
            assert len(active) <= max(scheduler.max_num_seqs, len(active - admitted))
        elif action == "release" and scheduler.active:
            released = list(scheduler.active.values())[n % len(scheduler.active)]
            scheduler.release(released)
            active.remove(released.request_id)
            ended.add(released.request_id)
        elif action == "cancel" and waiting:
            name = sorted(waiting)[n % len(waiting)]
            assert scheduler.drop_waiting(name)
            assert not scheduler.drop_waiting(name)
            waiting.remove(name)
        elif action == "evict":
            assert {r.request_id for r in scheduler.evict()} == waiting | active
            waiting, active = set(), set()
        elif action == "shrink":
            scheduler.max_num_seqs = max(1, scheduler.max_num_seqs - n)
        check(scheduler)
        assert {a.request_id for a in scheduler.active.values()} == active
        assert {r.request_id for r in scheduler.waiting} == waiting


def test_ten_thousand_requests_through_sixteen_slots() -> None:
    scheduler, draw = Scheduler(16, PagePool(200), page_size=16, look_ahead=16), random.Random(0)
    frames_left: dict[int, int] = {}
    added = ended = steps = 0
    while ended < 10_000:
        while added < 10_000 and scheduler.room > 0:
            scheduler.add(row(added, draw.randint(1, 100)))
            added += 1
        for active in scheduler.admit(0.0):
            frames_left[active.slot] = active.request.max_frames
        assert scheduler.active, "nothing decodes though rows wait"
        steps += 1
        jump = min(frames_left.values())
        for slot in list(frames_left):
            frames_left[slot] -= jump
            if frames_left[slot] == 0:
                del frames_left[slot]
                scheduler.release(scheduler.active[slot])
                ended += 1
    check(scheduler)
    assert (scheduler.num_waiting, scheduler.active, scheduler.pages.num_free) == (0, {}, 200)
    assert len(scheduler._free_slots) == 16


def test_the_longest_are_admitted_first_and_the_short_wait_for_a_bounded_number() -> None:
    scheduler = Scheduler(1, PagePool(100), page_size=16, look_ahead=4)
    admitted = []
    for name, frames in enumerate([5, 50, 20, 40, *[90] * 12]):
        scheduler.add(row(name, frames))
        if scheduler.room == 0:
            (active,) = scheduler.admit(0.0)
            admitted.append(int(active.request_id))
            scheduler.release(active)
    while scheduler.num_waiting:
        (active,) = scheduler.admit(0.0)
        admitted.append(int(active.request_id))
        scheduler.release(active)
    assert admitted[:4] == [1, 3, 2, 0]  # longer ones that came later did not pass row 0
    assert sorted(admitted) == list(range(16))


def test_admits_in_bursts_and_at_once_when_nothing_decodes() -> None:
    scheduler = Scheduler(16, PagePool(100), page_size=16, look_ahead=16)
    scheduler.add(row("first"))
    assert len(scheduler.admit(0.0)) == 1
    for i in range(15):
        scheduler.add(row(i))
    assert len(scheduler.admit(0.0)) == 15
    scheduler.add(row("late"))
    scheduler.add(row("later"))
    scheduler.release(scheduler.active[3])
    assert scheduler.admit(0.0) == []  # one slot of sixteen is not worth a prefill
    scheduler.release(scheduler.active[7])
    assert [active.slot for active in scheduler.admit(0.0)] == [3, 7]


def test_a_row_waits_for_pages_and_keeps_its_turn() -> None:
    scheduler = Scheduler(4, PagePool(3), page_size=16, look_ahead=4)
    big = row("big", 40)
    small = [replace(row(f"small {i}", 10), expected_frames=1) for i in range(2)]
    scheduler.add(replace(row("first", 30), expected_frames=90))
    (first,) = scheduler.admit(0.0)
    for waiting in (big, *small):
        scheduler.add(waiting)
    assert scheduler.admit(0.0) == []
    scheduler.release(first)
    assert [active.request_id for active in scheduler.admit(0.0)] == ["big"]


def test_pages_come_back_whole() -> None:
    pool = PagePool(5)
    taken = pool.take(3)
    with pytest.raises(ValueError, match="3 pages asked for, 2 free"):
        pool.take(3)
    pool.give_back(taken)
    assert sorted(pool.take(5)) == list(range(5))
