"""A row under way in a worker: its pieces, their attempts, and the engine's results so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tts_batch.engine.request import Reference, SpeechRequest, SpeechResult
from tts_batch.ipc.messages import ClipTask, PieceResult, PieceTask, RowTask
from tts_batch.records import Failure


@dataclass(slots=True, eq=False)
class ActiveRow:
    """A row between its arrival and its end."""

    task: RowTask
    reference: Reference | None
    pieces: list[ActivePiece] = field(init=False)
    begun_at_s: float | None = None  # when the engine got the first of its requests, by the monotonic clock
    is_finishing: bool = False  # its results are being examined and written
    has_ended: bool = False  # nothing that the engine still returns of it counts
    failed_attempts: list[Mapping[str, Any]] = field(default_factory=list)  # one record for each

    def __post_init__(self) -> None:
        self.pieces = [ActivePiece(self, number, piece) for number, piece in enumerate(self.task.pieces)]

    @property
    def id(self) -> str:
        return self.task.id

    @property
    def is_answered(self) -> bool:
        """Whether there is a result for every piece."""
        return all(piece.result is not None for piece in self.pieces)

    def end(self) -> None:
        """Nothing of it counts any more; its audio is released now, though row and pieces refer to each other."""
        self.has_ended = True
        for piece in self.pieces:
            piece.result = None

    def clip_task(self, failure: Failure | None = None, failed_piece: int | None = None) -> ClipTask:
        """Return what it takes to finish the attempt; with `failure`, to record that the row has failed."""
        results = [piece.as_result() for piece in self.pieces if piece.result is not None and failure is None]
        return ClipTask(
            row=self.task,
            results=tuple(results),
            num_attempts=max(piece.num_attempts for piece in self.pieces),
            failed_attempts=tuple(self.failed_attempts),
            failure=failure,
            failed_piece=failed_piece,
        )


@dataclass(slots=True, eq=False)
class ActivePiece:
    """One request of a row. Each piece has attempts of its own."""

    row: ActiveRow
    number: int  # from 0
    task: PieceTask
    num_attempts: int = 0  # begun in this run
    result: SpeechResult | None = None  # of the last attempt, until another one begins

    @property
    def seed(self) -> int:
        """Of the attempt under way."""
        return self.task.seeds[self.num_attempts - 1]

    @property
    def is_last_attempt(self) -> bool:
        return self.num_attempts >= len(self.task.seeds)

    def begin_attempt(self) -> SpeechRequest:
        """Return the request of the next attempt."""
        self.num_attempts += 1
        self.result = None
        row, piece = self.row.task, self.task
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
            reference=self.row.reference,
            x_vector_only=row.x_vector_only,
            non_streaming=row.non_streaming,
        )

    def as_result(self) -> PieceResult:
        assert self.result is not None
        return PieceResult(self.number, self.num_attempts, self.seed, self.is_last_attempt, self.result)
