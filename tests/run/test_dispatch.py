"""Whatever happens to workers, every row ends exactly once, and only a killer is found guilty."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_batch.plan.rows import PlannedRow
from tts_batch.records import Row
from tts_batch.run.dispatch import MESSAGE_ROWS, Dispatch, Holding, Work, find_room


def make_work(count: int) -> list[Work]:
    return [Work(PlannedRow(Row(n, f"r{n}", "t")), {}) for n in range(count)]


@settings(deadline=None)
@given(
    num_rows=st.integers(0, 30),
    killers=st.sets(st.integers(0, 29), max_size=4),
    batch=st.integers(1, 6),
    workers=st.integers(1, 3),
    choices=st.data(),
)
def test_every_row_ends_once(
    num_rows: int, killers: set[int], batch: int, workers: int, choices: st.DataObject
) -> None:
    dispatch = Dispatch(iter(make_work(num_rows)))
    holdings = [Holding() for _ in range(workers)]
    ended: list[str] = []
    guilty: list[str] = []
    fatal = {f"r{n}" for n in killers}
    for _ in range(5_000):
        if dispatch.exhausted and not any(len(holding) for holding in holdings):
            break
        holding = choices.draw(st.sampled_from(holdings)) if workers > 1 else holdings[0]
        while len(holding) < batch and dispatch.take(holding) is not None:
            pass
        while holding.queued:
            holding.pull()
        if fatal & holding.in_flight.keys():
            if (found := dispatch.bury(holding)) is not None:
                guilty.append(found.id)
        elif holding.in_flight:
            row_id = next(iter(holding.in_flight))
            assert holding.end(row_id) is not None
            assert holding.end(row_id) is None
            ended.append(row_id)
    assert sorted(ended + guilty) == sorted(f"r{n}" for n in range(num_rows))
    assert set(guilty) == fatal & {f"r{n}" for n in range(num_rows)}


def test_rows_that_the_engine_had_not_pulled_are_innocent() -> None:
    dispatch = Dispatch(iter(make_work(3)))
    holding = Holding()
    for _ in range(3):
        dispatch.take(holding)
    holding.pull()
    assert dispatch.bury(holding) is None
    works = [dispatch.take(holding) for _ in range(3)]
    assert [(work.id, work.deaths) for work in works if work] == [("r0", 1), ("r1", 0), ("r2", 0)]


def test_a_suspect_runs_alone_and_last() -> None:
    first, second = make_work(2)
    first.deaths = 1
    dispatch = Dispatch(iter([first, second]))
    holding, other = Holding(), Holding()
    for _ in range(2):
        dispatch.take(holding)
        holding.pull()
    assert dispatch.bury(holding) is None  # two were in hand: either may be guilty
    assert dispatch.take(holding) is second
    assert dispatch.take(holding) is None
    assert dispatch.take(other) is first
    assert dispatch.take(other) is None


def test_nothing_comes_to_a_suspect_though_other_rows_come_back() -> None:
    suspect, lost = make_work(2)
    suspect.deaths = 2
    dispatch = Dispatch(iter([suspect, lost]))
    alone, other = Holding(), Holding()
    assert dispatch.take(alone) is suspect
    assert dispatch.take(other) is lost
    assert dispatch.bury(other) is None  # it had not pulled its row, which goes on
    assert dispatch.take(alone) is None
    alone.pull()
    assert dispatch.take(alone) is None
    assert dispatch.take(other) is lost


def test_drop_leaves_nothing_to_hand_out() -> None:
    dispatch = Dispatch(iter(make_work(3)))
    holding = Holding()
    dispatch.take(holding)
    dispatch.drop()
    assert dispatch.exhausted
    assert dispatch.take(Holding()) is None
    assert holding.end("r0") is not None


def finish_time(num_rows: int, speeds: list[float], batch: int, opened: list[float], most: int = 2_048) -> float:
    """How long workers take that pull greedily up to `batch` rows, and make so many rows in a unit of time."""
    dispatch = Dispatch(iter(make_work(num_rows)))
    dispatch.read_ahead(num_rows)
    holdings = [Holding() for _ in speeds]
    done, now, step = [0.0] * len(speeds), 0.0, 0.25
    while dispatch.waiting or any(map(len, holdings)):
        for number, holding in enumerate(holdings):
            is_open = now >= opened[number]
            while (room := find_room(holding, holdings, dispatch.waiting, most if is_open else MESSAGE_ROWS)) > 0:
                taken = [dispatch.take(holding) for _ in range(min(room, MESSAGE_ROWS))]
                while is_open and holding.queued and len(holding.in_flight) < batch:
                    holding.pull()
                if taken[-1] is None:
                    break
            while is_open and holding.queued and len(holding.in_flight) < batch:
                holding.pull()
            done[number] += speeds[number] * step if is_open else 0.0
            while done[number] >= 1 and holding.in_flight:
                holding.end(next(iter(holding.in_flight)))
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
def test_a_worker_half_as_fast_holds_nobody_up(num_rows: int, batch: int, speeds: list[float]) -> None:
    ideal = num_rows / sum(speeds)
    assert finish_time(num_rows, speeds, batch, [0.0] * len(speeds)) <= 1.2 * ideal + batch / min(speeds) + 1
