"""make_plan checks and counts a whole input; iter_planned streams its rows, ready to run, in input order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tts_batch.cache import cache_folder
from tts_batch.choices import Task
from tts_batch.config import JobConfig
from tts_batch.dataset.audio import load_reference
from tts_batch.dataset.notes import Notes, ReadReport
from tts_batch.dataset.rows import read_rows
from tts_batch.errors import RowError, UsageError
from tts_batch.plan.budget import END_TOKEN_FAILURE_RATE, FRAMES_PER_S
from tts_batch.plan.checks import check_engine, note_settings
from tts_batch.plan.fingerprint import run_fingerprint, run_settings
from tts_batch.plan.models import ModelGroup, Models
from tts_batch.plan.rows import PlannedRow, check_rows, plan_rows
from tts_batch.plan.shards import Shard
from tts_batch.records import Failure, Row

if TYPE_CHECKING:
    from tts_batch.dataset.fetch import Fetcher

__all__ = ["GroupTotals", "Plan", "PlannedRow", "iter_planned", "make_plan"]

MAX_EXAMPLES = 20


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """A measured speed of a card, from an entry of benchmarks/log.md."""

    card: str
    entry: str
    frame_s: float  # runner v2, a frame of `rows` rows
    rows: int
    codec_audio_s_per_s: float  # Code2Wav, beside the frames on the same GPU

    def gpu_s(self, audio_s: float) -> float:
        """Return the seconds of one GPU for an amount of audio, without prefill, start-up and the last rows."""
        return audio_s * (FRAMES_PER_S * self.frame_s / self.rows + 1 / self.codec_audio_s_per_s)


# By the talker's hidden size: the 1.7B models. Others have not been measured, and get no estimate.
SPEEDS = {2048: MeasuredSpeed("H200", "2026-11-30", frame_s=0.01018, rows=512, codec_audio_s_per_s=6327)}


@dataclass(slots=True, eq=False)
class GroupTotals:
    """The work of one checkpoint."""

    model: ModelGroup
    num_rows: int = 0
    num_mine: int = 0  # of them, in the run's own shard
    num_pieces: int = 0  # of their texts: as many as rows, or more with --split-text
    expected_frames: int = 0
    budget_frames: int = 0
    longest_frames: int = 0  # the largest budget of a piece
    prompt_positions: int = 0

    def add(self, checked: PlannedRow, *, mine: bool = True) -> None:
        """Count a row of the group; `mine`: the row belongs to the run's shard."""
        self.num_rows += 1
        self.num_mine += mine
        self.num_pieces += len(checked.pieces)
        self.expected_frames += checked.expected_frames
        self.budget_frames += checked.max_frames
        self.longest_frames = max([self.longest_frames, *(piece.max_frames for piece in checked.pieces)])
        self.prompt_positions += sum(piece.prompt_positions for piece in checked.pieces)

    @property
    def expected_audio_s(self) -> float:
        return self.expected_frames / FRAMES_PER_S

    @property
    def budget_audio_s(self) -> float:
        """The audio if every row used its whole budget."""
        return self.budget_frames / FRAMES_PER_S

    @property
    def speed(self) -> MeasuredSpeed | None:
        """The measurement behind `gpu_s`; None where models of this shape were not measured."""
        checkpoint = self.model.checkpoint
        return SPEEDS.get(checkpoint.config.talker.hidden_size) if checkpoint else None

    @property
    def gpu_s(self) -> float | None:
        """Seconds of one GPU; None where the model's speed was not measured."""
        return self.speed.gpu_s(self.expected_audio_s) if self.speed else None

    @property
    def weights_bytes(self) -> int:
        """The size of the weights on disk; 0 for those of an engine of the user's own."""
        checkpoint = self.model.checkpoint
        return sum(file.stat().st_size for file in checkpoint.path.rglob("*.safetensors")) if checkpoint else 0

    @property
    def cache_bytes_per_row(self) -> int:
        """The KV cache, in bfloat16, of a row, or a piece, of average length: its prompt and its frames."""
        if self.model.checkpoint is None:
            return 0
        talker = self.model.checkpoint.config.talker
        positions = (self.prompt_positions + self.expected_frames) / self.num_pieces
        return round(2 * talker.num_hidden_layers * talker.num_key_value_heads * talker.head_dim * 2 * positions)

    def to_dict(self) -> dict[str, Any]:
        """Return the totals as JSON values."""
        speed = self.speed
        return {
            "model": self.model.name,
            "revision": self.model.revision,
            "task": self.model.task,
            "rows": self.num_rows,
            "pieces": self.num_pieces,
            "expected_audio_hours": self.expected_audio_s / 3600,
            "budget_frames": self.budget_frames,
            "weights_bytes": self.weights_bytes,
            "cache_bytes_per_row": self.cache_bytes_per_row,
            "gpu_hours": self.gpu_s / 3600 if self.gpu_s is not None else None,
            "measured": asdict(speed) if speed else None,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A checked input. Nothing in it grows with the number of rows."""

    num_rows: int
    num_mine: int  # of them, in the run's own shard
    failures: dict[str, int]  # reason → rows
    examples: tuple[Row, ...]  # the first rows with a failure
    groups: tuple[GroupTotals, ...]  # in the order in which they run
    notes: tuple[str, ...]
    tables: tuple[ReadReport, ...] = ()  # how they were read
    settings: dict[str, Any] = field(default_factory=dict)  # fingerprint.run_settings
    fetcher: Fetcher | None = None  # keeps the bytes of fetched URLs

    @property
    def num_failed(self) -> int:
        return sum(self.failures.values())

    @property
    def num_planned(self) -> int:
        return self.num_rows - self.num_failed

    @property
    def expected_end_token_failures(self) -> float:
        """Rows, or pieces, that will probably use their whole budget at the first attempt."""
        return sum(group.num_pieces for group in self.groups) * END_TOKEN_FAILURE_RATE

    @property
    def fingerprint(self) -> str:
        return run_fingerprint(self.settings)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {
            "rows": self.num_rows,
            "planned": self.num_planned,
            "failed": self.num_failed,
            "failures": dict(self.failures),
            "examples": [_describe_failure(row) for row in self.examples],
            "models": [group.to_dict() for group in self.groups],
            "expected_audio_hours": sum(group.expected_audio_s for group in self.groups) / 3600,
            "budget_frames": sum(group.budget_frames for group in self.groups),
            "expected_end_token_failures": self.expected_end_token_failures,
            "tables": [report.to_dict() for report in self.tables],
            "notes": list(self.notes),
            "fingerprint": self.fingerprint,
        }


def _describe_failure(row: Row) -> dict[str, Any]:
    failure = row.failure
    assert failure is not None
    return {
        "row_index": row.row_index,
        "id": row.id,
        "source": row.source,
        "reason": failure.reason,
        "message": failure.message,
    }


def make_plan(config: JobConfig, *, deep: bool = False, watch: Callable[[Row], None] | None = None) -> Plan:
    """Check every row without loading a model's weights; with `deep`, decode every distinct reference too.

    `watch` gets every row, failed ones too.

    Raises UsageError for an input without rows or that cannot be read and for an unknown engine,
    CannotContinueError when a checkpoint that rows need is unavailable.
    """
    notes = Notes()
    check_engine(config, notes)
    note_settings(config, notes)
    models, fetcher = Models(config), make_fetcher(config)
    decoded: dict[str, Failure | None] = {}
    shard = Shard.parse(config.shard)
    num_rows = num_mine = 0
    failures: Counter[str] = Counter()
    examples: list[Row] = []
    groups: dict[Task | None, GroupTotals] = {}
    for checked in check_rows(read_rows(config, notes, with_extras=False, fetcher=fetcher), config, models, notes):
        if watch is not None:
            watch(checked.row)
        mine = shard.holds(checked.row.id)
        num_rows, num_mine = num_rows + 1, num_mine + mine
        result = _decode_reference(checked, decoded) if deep else checked
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
        notes.add(f"distinct references decoded: {len(decoded)}")
    in_order = [groups[task] for task in models.groups if task in groups]
    return Plan(
        num_rows=num_rows,
        num_mine=num_mine,
        failures=dict(failures),
        examples=tuple(examples),
        groups=tuple(in_order),
        notes=tuple(notes.sentences()),
        tables=tuple(notes.reports()),
        settings=run_settings(
            config, {group.model.task: group.model.weights for group in in_order if group.model.task}
        ),
        fetcher=fetcher,
    )


def _decode_reference(checked: PlannedRow, decoded: dict[str, Failure | None]) -> PlannedRow:
    """Return the row, failed if its reference cannot be decoded or is not usable as a voice.

    `decoded` keeps the failure of each distinct reference, if any.
    """
    reference, key = checked.row.ref_audio, checked.reference_key
    if reference is None or key is None:
        return checked
    if key not in decoded:
        decoded[key] = None
        try:
            load_reference(reference)
        except RowError as error:
            decoded[key] = Failure(error.reason, error.message)
    failure = decoded[key]
    return checked if failure is None else PlannedRow(replace(checked.row, failure=failure))


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
