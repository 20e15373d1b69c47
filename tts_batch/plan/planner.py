"""make_plan checks and counts a whole input; iter_planned streams its rows, ready to run, in input order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tts_batch.config import JobConfig
from tts_batch.dataset.audio import content_key, probe_reference
from tts_batch.dataset.notes import Notes
from tts_batch.dataset.rows import read_rows
from tts_batch.engine.request import SamplingParams
from tts_batch.errors import RowError, UsageError
from tts_batch.plan.budget import END_TOKEN_FAILURE_RATE, FRAMES_PER_S, plan_frames
from tts_batch.plan.checks import remark_row, remark_settings
from tts_batch.plan.fingerprint import run_fingerprint, run_settings
from tts_batch.plan.models import ModelGroup, Models
from tts_batch.plan.seeds import derive_seed
from tts_batch.plan.tasks import check_task
from tts_batch.records import Failure, Row

MAX_EXAMPLES = 20


@dataclass(frozen=True, slots=True, eq=False)
class PlannedRow:
    """A row and how to make it. A row with a failure has only the row."""

    row: Row
    model_group: ModelGroup | None = None
    fingerprint: str = ""
    reference_key: str | None = None  # the content key of its reference
    seed: int = 0  # of the first attempt
    max_frames: int = 0
    expected_frames: int = 0
    num_text_tokens: int = 0

    @property
    def sampling(self) -> SamplingParams:
        assert self.model_group is not None, "a failed row is not sampled"
        return self.model_group.sampling


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
    for planned in plan_rows(read_rows(config, notes, with_extras=False), config, models, notes):
        num_rows += 1
        if planned.row.failure is not None:
            failures[planned.row.failure.reason] += 1
            if len(examples) < MAX_EXAMPLES:
                examples.append(planned.row)
            continue
        assert planned.model_group is not None
        task = planned.model_group.task
        rows[task] += 1
        expected[task] += planned.expected_frames
        budget[task] += planned.max_frames
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


def plan_rows(rows: Iterable[Row], config: JobConfig, models: Models, notes: Notes) -> Iterator[PlannedRow]:
    """Plan rows one by one; one that cannot be made keeps its place, with a failure."""
    for row in rows:
        yield PlannedRow(row) if row.failure is not None else _plan_row(row, config, models, notes)


def _plan_row(row: Row, config: JobConfig, models: Models, notes: Notes) -> PlannedRow:
    try:
        row, group = models.assign(row)
        check_task(row, group.checkpoint.config)
        return _plan_good_row(row, group, config, notes)
    except RowError as error:
        return PlannedRow(replace(row, failure=Failure(error.reason, error.message)))


def _plan_good_row(row: Row, group: ModelGroup, config: JobConfig, notes: Notes) -> PlannedRow:
    reference_key, reference_s = None, None
    if row.ref_audio is not None:
        reference_s = probe_reference(row.ref_audio)
        reference_key = content_key(row.ref_audio)
    num_text_tokens = len(group.tokenizer.encode(row.text))
    max_frames, expected_frames = _frames(row, config, group, num_text_tokens, reference_s)
    seed = derive_seed(config.seed, row.id, explicit=row.seed)
    non_streaming = row.non_streaming if row.non_streaming is not None else group.task != "base"
    remark_row(row, group, reference_s, notes)
    return PlannedRow(
        row=row,
        model_group=group,
        fingerprint=group.fingerprints.of(
            row, voice_key=reference_key, non_streaming=non_streaming, max_frames=max_frames, seed=seed
        ),
        reference_key=reference_key,
        seed=seed,
        max_frames=max_frames,
        expected_frames=min(expected_frames, max_frames),
        num_text_tokens=num_text_tokens,
    )


def _frames(
    row: Row, config: JobConfig, group: ModelGroup, num_text_tokens: int, reference_s: float | None
) -> tuple[int, int]:
    """Return (budget, expected frames). Raises RowError(text_too_long) and (bad_row) beyond the model's limits."""
    budget = plan_frames(num_text_tokens, row.language, group.max_frames)
    if budget.expected > group.max_frames:
        raise RowError(
            "text_too_long",
            f"the text has {num_text_tokens} tokens, about {budget.expected / FRAMES_PER_S:.0f} s of speech, and the "
            f"model ends a clip at {group.max_frames} frames ({group.max_frames / FRAMES_PER_S:.0f} s): split it.",
        )
    max_frames = row.max_frames or config.max_frames or budget.max_frames
    prompt = num_text_tokens + sum(map(group.count_repeated, filter(None, (row.ref_text, row.instruct))))
    prompt += round((reference_s or 0) * FRAMES_PER_S) + 32  # the template's own positions
    if prompt + max_frames > group.max_positions:
        raise RowError(
            "text_too_long" if prompt > group.max_positions // 2 else "bad_row",
            f"prompt and max_frames take {prompt} + {max_frames} positions, and the model has {group.max_positions}: "
            "shorten the texts or lower max_frames.",
        )
    return max_frames, budget.expected
