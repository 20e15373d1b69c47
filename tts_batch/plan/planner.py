"""make_plan checks and counts a whole input; iter_planned streams its rows, ready to run, in input order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tts_batch.config import JobConfig
from tts_batch.dataset.notes import Notes
from tts_batch.dataset.rows import read_rows
from tts_batch.errors import UsageError
from tts_batch.plan.budget import END_TOKEN_FAILURE_RATE, FRAMES_PER_S
from tts_batch.plan.checks import remark_settings
from tts_batch.plan.fingerprint import run_fingerprint, run_settings
from tts_batch.plan.models import ModelGroup, Models
from tts_batch.plan.rows import PlannedRow, check_rows, plan_rows
from tts_batch.records import Row

__all__ = ["GroupTotals", "Plan", "PlannedRow", "iter_planned", "make_plan"]

MAX_EXAMPLES = 20


@dataclass(frozen=True, slots=True, eq=False)
class GroupTotals:
    """What one checkpoint has to do."""

    model: ModelGroup
    num_rows: int
    expected_audio_s: float
    budget_frames: int


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A checked input. Nothing in it grows with the number of rows."""

    num_rows: int
    failures: dict[str, int]  # reason → rows
    examples: tuple[Row, ...]  # the first rows with a failure
    groups: tuple[GroupTotals, ...]  # in the order in which they run
    notes: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)  # fingerprint.run_settings

    @property
    def num_failed(self) -> int:
        return sum(self.failures.values())

    @property
    def num_planned(self) -> int:
        return self.num_rows - self.num_failed

    @property
    def expected_audio_s(self) -> float:
        return sum(group.expected_audio_s for group in self.groups)

    @property
    def budget_frames(self) -> int:
        return sum(group.budget_frames for group in self.groups)

    @property
    def expected_end_token_failures(self) -> float:
        """Rows that will probably use up their budget at the first attempt."""
        return self.num_planned * END_TOKEN_FAILURE_RATE

    @property
    def fingerprint(self) -> str:
        return run_fingerprint(self.settings)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON takes it."""
        return {
            "rows": self.num_rows,
            "planned": self.num_planned,
            "failed": self.num_failed,
            "failures": dict(self.failures),
            "examples": [_example(row) for row in self.examples],
            "models": [
                {
                    "model": group.model.name,
                    "revision": group.model.checkpoint.revision,
                    "task": group.model.task,
                    "rows": group.num_rows,
                    "expected_audio_hours": group.expected_audio_s / 3600,
                    "budget_frames": group.budget_frames,
                }
                for group in self.groups
            ],
            "expected_audio_hours": self.expected_audio_s / 3600,
            "budget_frames": self.budget_frames,
            "expected_end_token_failures": self.expected_end_token_failures,
            "notes": list(self.notes),
            "fingerprint": self.fingerprint,
        }


def _example(row: Row) -> dict[str, Any]:
    failure = row.failure
    assert failure is not None
    return {
        "row_index": row.row_index,
        "id": row.id,
        "source": row.source,
        "reason": failure.reason,
        "message": failure.message,
    }


def make_plan(config: JobConfig) -> Plan:
    """Check every row without loading a model's weights.

    Raises UsageError for an input without rows or that cannot be read, CannotContinueError when a checkpoint that
    rows need cannot be had.
    """
    notes = Notes()
    remark_settings(config, notes)
    models = Models(config)
    num_rows = 0
    failures: Counter[str] = Counter()
    examples: list[Row] = []
    rows: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    budget: Counter[str] = Counter()
    for checked in check_rows(read_rows(config, notes, with_extras=False), config, models, notes):
        num_rows += 1
        if checked.row.failure is not None:
            failures[checked.row.failure.reason] += 1
            if len(examples) < MAX_EXAMPLES:
                examples.append(checked.row)
            continue
        assert checked.model_group is not None
        task = checked.model_group.task
        rows[task] += 1
        expected[task] += checked.expected_frames
        budget[task] += checked.max_frames
    if not num_rows:
        raise UsageError(f"{' '.join(config.data)} has no rows.")
    groups = [group for task, group in models.groups.items() if rows[task]]
    return Plan(
        num_rows=num_rows,
        failures=dict(failures),
        examples=tuple(examples),
        groups=tuple(
            GroupTotals(group, rows[group.task], expected[group.task] / FRAMES_PER_S, budget[group.task])
            for group in groups
        ),
        notes=tuple(notes.sentences()),
        settings=run_settings(config, {group.task: group.weights for group in groups}),
    )


def iter_planned(config: JobConfig, plan: Plan) -> Iterator[PlannedRow]:
    """Yield every row of `plan`, failed ones too, in input order; call it again to read them again."""
    models = Models(config)
    models.groups |= {totals.model.task: totals.model for totals in plan.groups}
    notes = Notes()  # make_plan has told them
    yield from plan_rows(read_rows(config, notes), config, models, notes)
