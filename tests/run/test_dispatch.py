"""Whatever happens to workers, every row ends exactly once, and only a poison row fails for it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.run.support import make_request
from tts_batch.ipc.messages import RowRequest
from tts_batch.run.dispatch import MESSAGE_ROWS, AssignedRows, Dispatch, find_room


def make_requests(count: int) -> list[RowRequest]:
    return [make_request(f"r{n}") for n in range(count)]


def begin_oldest(assigned: AssignedRows) -> None:
    """As when the engine takes the row that waits longest."""
    assigned.begin(next(iter(assigned.queued)))


@settings(deadline=None)
@given(
    num_rows=st.integers(0, 30),
    poison=st.sets(st.integers(0, 29), max_size=4),
    batch=st.integers(1, 6),
    workers=st.integers(1, 3),
    choices=st.data(),
)
def test_every_row_ends_once(num_rows: int, poison: set[int], batch: int, workers: int, choices: st.DataObject) -> None:
    dispatch = Dispatch(iter(make_requests(num_rows)))
    all_assigned = [AssignedRows() for _ in range(workers)]
    ended: list[str] = []
    failed: list[str] = []
    fatal = {f"r{n}" for n in poison}
    for _ in range(5_000):
        if dispatch.exhausted and not any(len(assigned) for assigned in all_assigned):
            break
        assigned = choices.draw(st.sampled_from(all_assigned)) if workers > 1 else all_assigned[0]
        while len(assigned) < batch and dispatch.take(assigned) is not None:
            pass
        while assigned.queued:
            begin_oldest(assigned)
        if fatal & assigned.in_flight.keys():
            if (found := dispatch.reclaim(assigned)) is not None:
                failed.append(found.id)
        elif assigned.in_flight:
            row_id = next(iter(assigned.in_flight))
            assert assigned.end(row_id) is not None
            assert assigned.end(row_id) is None
            ended.append(row_id)
    assert sorted(ended + failed) == sorted(f"r{n}" for n in range(num_rows))
    assert set(failed) == fatal & {f"r{n}" for n in range(num_rows)}


def test_rows_that_the_engine_has_not_begun_only_come_back() -> None:
    dispatch = Dispatch(iter(make_requests(3)))
    assigned = AssignedRows()
    for _ in range(3):
        dispatch.take(assigned)
    begin_oldest(assigned)
    assert dispatch.reclaim(assigned) is None
    rows = [dispatch.take(assigned) for _ in range(3)]
    assert [(row.id, dispatch.deaths[row.id]) for row in rows if row] == [("r0", 1), ("r1", 0), ("r2", 0)]


def test_a_suspect_runs_alone_and_last() -> None:
    first, second = make_requests(2)
    dispatch = Dispatch(iter([first, second]))
    dispatch.deaths[first.id] = 1
    assigned, other = AssignedRows(), AssignedRows()
    for _ in range(2):
        dispatch.take(assigned)
        begin_oldest(assigned)
    assert dispatch.reclaim(assigned) is None  # two were in flight: either may be the cause
    assert dispatch.take(assigned) is second
    assert dispatch.take(assigned) is None
    assert dispatch.take(other) is first
    assert dispatch.take(other) is None


def test_nothing_comes_to_a_suspect_though_other_rows_come_back() -> None:
    suspect, lost = make_requests(2)
    dispatch = Dispatch(iter([suspect, lost]))
    dispatch.deaths[suspect.id] = 2
    alone, other = AssignedRows(), AssignedRows()
    assert dispatch.take(alone) is suspect
    assert dispatch.take(other) is lost
    assert dispatch.reclaim(other) is None  # it had not begun its row, which comes back
    assert dispatch.take(alone) is None
    begin_oldest(alone)
    assert dispatch.take(alone) is None
    assert dispatch.take(other) is lost


def test_drop_leaves_nothing_to_assign() -> None:
    dispatch = Dispatch(iter(make_requests(3)))
    assigned = AssignedRows()
    dispatch.take(assigned)
    dispatch.drop()
    assert dispatch.exhausted
    assert dispatch.take(AssignedRows()) is None
    assert assigned.end("r0") is not None


def finish_time(num_rows: int, speeds: list[float], batch: int, opened: list[float], most: int = 2_048) -> float:
    """How long workers take that begin up to `batch` rows as they can, and make `speeds` rows in a unit of time."""
    dispatch = Dispatch(iter(make_requests(num_rows)))
    dispatch.read_ahead(num_rows)
    all_assigned = [AssignedRows() for _ in speeds]
    done, now, step = [0.0] * len(speeds), 0.0, 0.25
    while dispatch.waiting or any(map(len, all_assigned)):
        for number, assigned in enumerate(all_assigned):
            is_open = now >= opened[number]
            while (room := find_room(assigned, all_assigned, dispatch.waiting, most if is_open else MESSAGE_ROWS)) > 0:
                taken = [dispatch.take(assigned) for _ in range(min(room, MESSAGE_ROWS))]
                while is_open and assigned.queued and len(assigned.in_flight) < batch:
                    begin_oldest(assigned)
                if taken[-1] is None:
                    break
            while is_open and assigned.queued and len(assigned.in_flight) < batch:
                begin_oldest(assigned)
            done[number] += speeds[number] * step if is_open else 0.0
            while done[number] >= 1 and assigned.in_flight:
                assigned.end(next(iter(assigned.in_flight)))
                done[number] -= 1
            done[number] = min(done[number], 1.0)
        now += step
    return now


@pytest.mark.parametrize("num_rows", [1, 7, 40, 1_000, 5_000])
@pytest.mark.parametrize("batch", [1, 4, 64, 2_048])
@pytest.mark.parametrize("opened", [[0.0], [0.0] * 8, [float(n) for n in range(8)]])
def test_equal_workers_end_together(num_rows: int, batch: int, opened: list[float]) -> None:
    """Also when the engine that is open first could take all rows."""
    speeds = [4.0] * len(opened)
    ideal = num_rows / sum(speeds) + max(opened)
    assert finish_time(num_rows, speeds, batch, opened) <= 1.2 * ideal + 2


@pytest.mark.parametrize("num_rows", [1, 7, 40, 1_000, 5_000])
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("speeds", [[2.0, 4.0], [4.0] * 7 + [2.0], [2.0] + [4.0] * 7])
def test_a_worker_half_as_fast_delays_none_of_the_others(num_rows: int, batch: int, speeds: list[float]) -> None:
    ideal = num_rows / sum(speeds)
    assert finish_time(num_rows, speeds, batch, [0.0] * len(speeds)) <= 1.2 * ideal + batch / min(speeds) + 1
