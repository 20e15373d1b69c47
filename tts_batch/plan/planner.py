"""make_plan checks and counts a whole input; iter_planned streams its rows, ready to run, in input order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tts_batch.cache import cache_folder
from tts_batch.choices import Task
from tts_batch.config import JobConfig
from tts_batch.dataset.notes import Notes
from tts_batch.dataset.rows import read_rows
from tts_batch.errors import UsageError
from tts_batch.plan.checks import check_engine, remark_settings
from tts_batch.plan.deep import ReferenceDecoder
from tts_batch.plan.fingerprint import run_settings
from tts_batch.plan.models import Models
from tts_batch.plan.rows import PlannedRow, check_rows, plan_rows
from tts_batch.plan.shards import Shard
from tts_batch.plan.totals import GroupTotals, Plan
from tts_batch.records import Row

if TYPE_CHECKING:
    from tts_batch.dataset.fetch import Fetcher

__all__ = ["GroupTotals", "Plan", "PlannedRow", "iter_planned", "make_plan"]

MAX_EXAMPLES = 20


def make_plan(config: JobConfig, *, deep: bool = False) -> Plan:
    """Check every row without loading a model's weights; with `deep`, decode every distinct reference too.

    Raises UsageError for an input without rows or that cannot be read and for an unknown engine,
    CannotContinueError when a checkpoint that rows need is unavailable.
    """
    notes = Notes()
    check_engine(config, notes)
    remark_settings(config, notes)
    models, fetcher, decoder = Models(config), make_fetcher(config), ReferenceDecoder()
    shard = Shard.parse(config.shard)
    num_rows = num_mine = 0
    failures: Counter[str] = Counter()
    examples: list[Row] = []
    groups: dict[Task, GroupTotals] = {}
    for checked in check_rows(read_rows(config, notes, with_extras=False, fetcher=fetcher), config, models, notes):
        mine = shard.holds(checked.row.id)
        num_rows, num_mine = num_rows + 1, num_mine + mine
        result = decoder.check(checked) if deep else checked
        if result.model_group is not None:
            group = groups.get(result.model_group.task)
            if group is None:
                group = groups[result.model_group.task] = GroupTotals(result.model_group)
            group.add(result, mine=mine)
        elif result.row.failure is not None:
            failures[result.row.failure.reason] += 1
            if len(examples) < MAX_EXAMPLES:
                examples.append(result.row)
    if not num_rows:
        raise UsageError(f"{' '.join(config.data)} has no rows.")
    if deep:
        notes.add(f"distinct references decoded: {decoder.num_decoded}")
    in_order = [groups[task] for task in models.groups if task in groups]
    return Plan(
        num_rows=num_rows,
        num_mine=num_mine,
        failures=dict(failures),
        examples=tuple(examples),
        groups=tuple(in_order),
        notes=tuple(notes.sentences()),
        tables=tuple(notes.reports()),
        settings=run_settings(config, {group.model.task: group.model.weights for group in in_order}),
        fetcher=fetcher,
    )


def make_fetcher(config: JobConfig) -> Fetcher | None:
    """Return the fetcher of references that are URLs; None without --allow-url."""
    if not config.allow_url:
        return None
    from tts_batch.dataset.fetch import Fetcher  # with an HTTP client, which other runs need not load

    return Fetcher(cache_folder() / "references")


def iter_planned(config: JobConfig, plan: Plan) -> Iterator[PlannedRow]:
    """Yield every row of `plan`, failed ones too, in input order; call it again to read them again."""
    models = Models(config)
    models.groups |= {totals.model.task: totals.model for totals in plan.groups}
    notes = Notes()  # make_plan has reported them
    yield from plan_rows(read_rows(config, notes, fetcher=plan.fetcher), config, models, notes)
