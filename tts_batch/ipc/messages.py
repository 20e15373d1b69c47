"""What the processes of a run say to each other: a dataclass for each message, a union for each direction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tts_batch.choices import CheckName, Format, Task
from tts_batch.engine.request import EngineConfig, Reference, SamplingParams, SpeechRequest, SpeechResult
from tts_batch.records import Failure

if TYPE_CHECKING:
    from tts_batch.store.journal import Outcome

# A row on its way: asked for by the parent, made by a worker, finished by a clip process


@dataclass(frozen=True, slots=True)
class PieceRequest:
    """One request of a row: its whole text, or a piece of a text that is split."""

    request_id: str
    text: str
    max_frames: int
    expected_s: float  # of speech, at a normal pace
    seeds: tuple[int, ...]  # one for each attempt that it may have


@dataclass(frozen=True, slots=True, eq=False)
class RowRequest:
    """A row to synthesise: everything that a worker needs to know of it."""

    id: str
    task: Task
    pieces: tuple[PieceRequest, ...]  # of its text, in order; most often one
    sampling: SamplingParams
    fingerprint: str
    input_digest: str
    language: str | None = None
    speaker: str | None = None
    instruct: str | None = None
    x_vector_only: bool = False
    non_streaming: bool | None = None
    reference: Reference | None = None
    seeds_before: tuple[int, ...] = ()  # of attempts in earlier runs …
    failed_before: tuple[Mapping[str, Any], ...] = ()  # … and their records

    @property
    def is_split(self) -> bool:
        return len(self.pieces) > 1

    @property
    def max_frames(self) -> int:
        """Of all pieces together."""
        return sum(piece.max_frames for piece in self.pieces)

    @property
    def expected_s(self) -> float:
        """Of all pieces together."""
        return sum(piece.expected_s for piece in self.pieces)


@dataclass(slots=True, eq=False)
class ActivePiece:
    """One request of a row under way. Each piece has attempts of its own."""

    number: int  # from 0
    request: PieceRequest
    num_attempts: int = 0  # begun in this run
    result: SpeechResult | None = None  # of the last attempt, until another one begins

    @property
    def seed(self) -> int:
        """Of the last attempt."""
        return self.request.seeds[max(self.num_attempts, 1) - 1]

    @property
    def is_last_attempt(self) -> bool:
        return self.num_attempts >= len(self.request.seeds)

    def begin_attempt(self, row: RowRequest) -> SpeechRequest:
        """Return the engine's request of the next attempt."""
        self.num_attempts += 1
        self.result = None
        piece = self.request
        return SpeechRequest(
            request_id=piece.request_id,
            text=piece.text,
            task=row.task,
            seed=self.seed,
            max_frames=piece.max_frames,
            sampling=row.sampling,
            language=row.language,
            speaker=row.speaker,
            instruct=row.instruct,
            reference=row.reference,
            x_vector_only=row.x_vector_only,
            non_streaming=row.non_streaming,
        )


@dataclass(slots=True, eq=False)
class ActiveRow:
    """A row between its arrival in a worker and its end; a clip process gets it to finish an attempt.

    With a `failure`, it has failed already, in `failed_piece` where that is known, and is only recorded.
    """

    request: RowRequest
    pieces: list[ActivePiece] = field(init=False)
    state: Literal["making", "finishing", "ended"] = "making"  # ended: nothing that the engine still returns counts
    begun_at_s: float | None = None  # when the engine got the first of its requests, by the monotonic clock
    failed_attempts: list[Mapping[str, Any]] = field(default_factory=list)  # one record for each
    failure: Failure | None = None
    failed_piece: int | None = None  # from 0

    def __post_init__(self) -> None:
        self.pieces = [ActivePiece(number, piece) for number, piece in enumerate(self.request.pieces)]

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def results(self) -> list[SpeechResult]:
        """What the engine has returned of it, in the order of the pieces."""
        return [piece.result for piece in self.pieces if piece.result is not None]

    @property
    def num_attempts(self) -> int:
        """In this run, of the piece with the most."""
        return max(piece.num_attempts for piece in self.pieces)

    def fail(self, failure: Failure, piece: int | None = None) -> None:
        """Have it recorded as failed, without its audio."""
        self.failure, self.failed_piece = failure, piece
        self.forget_results()

    def forget_results(self) -> None:
        """Release the audio now, whoever still refers to the row."""
        for piece in self.pieces:
            piece.result = None


Ended = dict[str, float | None]
"""Rows that are recorded in the journal: id → seconds of audio; None: the row failed."""


def ended_rows(outcomes: Iterable[Outcome]) -> Ended:
    """Return what lines of the journal say of their rows' ends."""
    return {line.id: None if line.status == "failed" else line.duration_s or 0.0 for line in outcomes}


# Settings


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """Where a clip fails; None turns a check off. The expected length is that of the text at a normal pace."""

    silent_peak_dbfs: float | None = -60.0  # silent_output: no sample is louder
    too_long_factor: float | None = 3.0  # too_long_for_text: this many times the expected length …
    too_long_floor_s: float | None = 8.0  # … and longer than this, whatever the text
    too_short_factor: float | None = 0.2  # too_short_for_text: less than this share of the expected length …
    too_short_floor_s: float | None = 2.0  # … of a text that is expected to be longer than this
    long_silence_s: float | None = 5.0  # long_silence: before, between or after the sounds
    noise_flatness: float | None = 0.5  # noise_output: spectra as flat; white noise has 0.56
    ref_correlation: float | None = 0.84  # ref_leak: of the clip's head with the last second of the reference

    @classmethod
    def of(cls, given: Mapping[CheckName, float | None], *, speaks: bool = True) -> CheckLimits:
        """Return the defaults, changed by what is `given`. A model that does not speak has no length to expect."""
        lengths: dict[CheckName, float | None] = {} if speaks else {"too_long_factor": None, "too_short_factor": None}
        return cls(**{**lengths, **given})

    def to_dict(self) -> dict[str, float | None]:
        return {limit.name: getattr(self, limit.name) for limit in fields(self)}


@dataclass(frozen=True, slots=True)
class ClipRules:
    """What a run holds its clips to, and how it writes them."""

    limits: CheckLimits = field(default_factory=CheckLimits)
    trim_margin_s: float | None = None  # None: clips are not trimmed
    split_pause_s: float = 0.3
    format: Format = "wav"
    save_codes: bool = False
    keep_failed_audio: bool = False


@dataclass(frozen=True, slots=True)
class EngineLabels:
    """What the journal says of every row's origin."""

    model: str | None = None
    model_revision: str | None = None
    engine: str | None = None
    runner: str | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a worker waits for its engine, in seconds."""

    answer_s: float  # for the result of one request, while the engine goes on with others …
    answer_frame_s: float  # … and this for each frame of the largest budget that it holds
    row_s: float | None = None  # for a row, all its attempts together


@dataclass(frozen=True, slots=True)
class SegmentNames:
    """What names the journal segments of one start of a worker; each of its clip processes has one."""

    journal: Path
    worker: str
    run: int
    start: int


# Parent → worker


@dataclass(frozen=True, slots=True)
class OpenEngine:
    """The first message to a worker."""

    out: Path
    segments: SegmentNames
    engine: str
    engine_config: EngineConfig
    rules: ClipRules
    labels: EngineLabels
    deadlines: Deadlines
    max_clip_processes: int
    task: Task | None = None  # of the checkpoint


@dataclass(frozen=True, slots=True)
class AssignRows:
    """More rows to synthesise."""

    rows: tuple[RowRequest, ...]


@dataclass(frozen=True, slots=True)
class NoMoreRows:
    """The worker ends when the rows that it has have ended."""


@dataclass(frozen=True, slots=True)
class StopWorker:
    """Rows that have begun may end within `deadline_s`; all others stay pending."""

    deadline_s: float


# Worker → parent


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The engine is open."""

    info: dict[str, str]


@dataclass(frozen=True, slots=True)
class RowsProgress:
    """Rows that the engine has begun, and rows that have ended. Empty: a sign of life from within a split row."""

    begun: tuple[str, ...] = ()
    ended: Ended = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkerClosing:
    """All rows have ended; the engine is closed next."""


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The worker ends: its disk is full, or something broke."""

    error: str
    disk_full: bool = False


# Worker → clip process; ActiveRow is the other message


@dataclass(frozen=True, slots=True)
class OpenWriter:
    """The first message to a clip process."""

    out: Path
    segment: Path
    rules: ClipRules
    labels: EngineLabels


@dataclass(frozen=True, slots=True)
class CommitNow:
    """Nothing follows soon: commit what is under way without waiting for more."""


@dataclass(frozen=True, slots=True)
class CloseWriter:
    """Commit what is under way, and end."""


# Clip process → worker; WorkerFailed is another message


@dataclass(frozen=True, slots=True)
class RetryPieces:
    """An attempt at a row failed, and these of its pieces, counted from 0, may be tried again."""

    row_id: str
    pieces: tuple[int, ...]
    failed_attempts: tuple[Mapping[str, Any], ...]  # one record for each


@dataclass(frozen=True, slots=True)
class RowsRecorded:
    """Rows that are on the disk and in the journal."""

    ended: Ended


ToWorker = OpenEngine | AssignRows | NoMoreRows | StopWorker
FromWorker = EngineReady | RowsProgress | WorkerClosing | WorkerFailed
ToClipProcess = OpenWriter | ActiveRow | CommitNow | CloseWriter
FromClipProcess = RetryPieces | RowsRecorded | WorkerFailed
