"""The totals of a checked input: the work of each checkpoint, failures, and estimates."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tts_batch.dataset.notes import ReadReport
from tts_batch.plan.budget import END_TOKEN_FAILURE_RATE, FRAMES_PER_S
from tts_batch.plan.estimate import MeasuredSpeed, cache_bytes, speed_of, weights_bytes
from tts_batch.plan.fingerprint import run_fingerprint
from tts_batch.plan.models import ModelGroup
from tts_batch.plan.rows import PlannedRow
from tts_batch.records import Row

if TYPE_CHECKING:
    from tts_batch.dataset.fetch import Fetcher


@dataclass(slots=True, eq=False)
class GroupTotals:
    """The work of one checkpoint."""

    model: ModelGroup
    num_rows: int = 0
    num_mine: int = 0  # of them, in the run's own shard
    num_pieces: int = 0  # of their texts: as many as rows, or more with --split-text
    expected_frames: int = 0
    budget_frames: int = 0
    prompt_positions: int = 0

    def add(self, checked: PlannedRow, *, mine: bool = True) -> None:
        """Count a row of the group; `mine`: the row belongs to the run's shard."""
        self.num_rows += 1
        self.num_mine += mine
        self.num_pieces += len(checked.pieces)
        self.expected_frames += checked.expected_frames
        self.budget_frames += checked.max_frames
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
        """The measurement behind `gpu_s`."""
        return speed_of(self.model.checkpoint)

    @property
    def gpu_s(self) -> float | None:
        """Seconds of one GPU; None where the model's speed was not measured."""
        return self.speed.gpu_s(self.expected_audio_s) if self.speed else None

    @property
    def weights_bytes(self) -> int:
        return weights_bytes(self.model.checkpoint)

    @property
    def cache_bytes_per_row(self) -> int:
        """The KV cache of a row, or a piece, of average length."""
        return cache_bytes(self.model.checkpoint, (self.prompt_positions + self.expected_frames) / self.num_pieces)

    def to_dict(self) -> dict[str, Any]:
        """Return the totals as JSON values."""
        checkpoint, speed = self.model.checkpoint, self.speed
        return {
            "model": self.model.name,
            "revision": checkpoint.revision,
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
    def expected_audio_s(self) -> float:
        return sum(group.expected_audio_s for group in self.groups)

    @property
    def budget_frames(self) -> int:
        return sum(group.budget_frames for group in self.groups)

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
            "examples": [_example(row) for row in self.examples],
            "models": [group.to_dict() for group in self.groups],
            "expected_audio_hours": self.expected_audio_s / 3600,
            "budget_frames": self.budget_frames,
            "expected_end_token_failures": self.expected_end_token_failures,
            "tables": [report.to_dict() for report in self.tables],
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
