"""The limit of rows halves at each shortage, comes back after calm rounds, and ever more slowly."""

from __future__ import annotations

import torch

from tests.engine.asking import ask
from tests.engine.scripted import ScriptedRunner, run_scripted
from tts_batch.engine.row_limit import ROUNDS_BEFORE_RAISING, RowLimit


def rows_until(limit: RowLimit, runner: ScriptedRunner, wanted: int) -> int:
    ended = 0
    while runner.max_num_seqs < wanted:
        limit.note_ended(1)
        ended += 1
    return ended


def test_the_limit_comes_back_step_by_step_and_no_further() -> None:
    runner = ScriptedRunner(12)
    limit = RowLimit(runner)
    limit.lower()
    limit.lower()
    assert runner.max_num_seqs == 3
    assert rows_until(limit, runner, 6) == 2 * ROUNDS_BEFORE_RAISING * 3
    assert rows_until(limit, runner, 12) == 2 * ROUNDS_BEFORE_RAISING * 6
    limit.note_ended(10_000)
    assert runner.max_num_seqs == 12


def test_each_further_shortage_doubles_the_calm_that_is_wanted() -> None:
    runner = ScriptedRunner(8)
    limit = RowLimit(runner)
    waits = []
    for _ in range(4):
        limit.lower()
        waits.append(rows_until(limit, runner, 8))
    assert waits == [4 * ROUNDS_BEFORE_RAISING * 2**n for n in range(4)]


def test_an_odd_limit_comes_back_to_itself() -> None:
    runner = ScriptedRunner(5)
    limit = RowLimit(runner)
    limit.lower()
    limit.note_ended(10_000)
    limit.note_ended(10_000)
    assert runner.max_num_seqs == 5


def test_a_shortage_that_has_passed_costs_speed_for_a_while_only() -> None:
    failed = []

    def fail_once(runner: ScriptedRunner) -> None:
        if len(runner.active) > 2 and not failed:
            failed.append(1)
            raise torch.OutOfMemoryError("scripted")

    runner = ScriptedRunner(4, on_step=fail_once)
    count = ROUNDS_BEFORE_RAISING * 2 + 10
    results = run_scripted([ask(str(n)) for n in range(count)], runner)
    assert [result.finish_reason for result in results] == ["stop"] * count
    assert (failed, runner.max_num_seqs) == ([1], 4)
