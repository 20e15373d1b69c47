"""The journal: append-only JSONL segments, one writer each: the only record of what is done.

OUT/journal/WORKER/RUN-START.jsonl holds one line for every row that ended, written after the row's audio is on disk
under its final name. RUN counts the runs over this folder and START the starts of that worker in the run. A worker
whose clips are written by several processes has a segment for each of them, RUN-START-CLIP.jsonl. In an object store,
where nothing can be appended, each group of lines is a numbered part of it, RUN-START-CLIP.PART.jsonl. Sorted by these
numbers, segments are in the order of time, and the last line of a row is the one that counts.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from pydantic_core import from_json

from tts_batch.errors import Reason

Status = Literal["ok", "failed", "pending"]
_STATUSES = frozenset(get_args(Status))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one row ended: a line of the journal, and the part of its manifest row that only a run can know."""

    id: str
    fingerprint: str
    input_digest: str  # of the row alone, without the run's settings
    status: Status  # pending: to be made again
    audio_bytes: int = 0
    codes_bytes: int = 0
    duration_s: float | None = None
    audio: str | None = None  # path relative to the run folder
    reason: Reason | None = None
    message: str | None = None
    audio_digest: str | None = None  # clips.digest_of the file
    codes: str | None = None  # path relative to the run folder
    codes_digest: str | None = None  # clips.digest_of the file
    sample_rate: int | None = None
    num_frames: int | None = None
    max_frames: int | None = None
    finish_reason: str | None = None
    eos: bool | None = None
    attempts: int = 0
    seed: int | None = None  # of the attempt that counts
    attempt_seeds: tuple[int, ...] = ()
    effective_language: str | None = None
    effective_speaker: str | None = None
    instruct_applied: bool | None = None
    model: str | None = None
    model_revision: str | None = None
    engine: str | None = None
    runner: str | None = None
    dtype: str | None = None
    peak: float | None = None
    rms_dbfs: float | None = None
    clipped_samples: int | None = None
    checks: dict[str, Any] = field(default_factory=dict)
    num_pieces: int = 1
    failed_attempts: tuple[dict[str, Any], ...] = ()  # measurements of each, for failures.parquet

    def reopened(self) -> Outcome:
        """Return the line that makes the row pending again; it keeps the seeds that were tried."""
        return Outcome(
            id=self.id,
            fingerprint=self.fingerprint,
            input_digest=self.input_digest,
            status="pending",
            reason=self.reason,
            attempts=self.attempts,
            seed=self.seed,
            attempt_seeds=self.attempt_seeds,
            failed_attempts=self.failed_attempts,
        )

    def to_line(self) -> bytes:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        line = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
        return line.encode("utf-8", "backslashreplace") + b"\n"  # half of a surrogate pair becomes its JSON escape

    @classmethod
    def from_line(cls, line: bytes) -> Outcome:
        """Read one line back; raises ValueError, KeyError or TypeError when it is damaged."""
        values = _parse(line)
        for name in ("attempt_seeds", "failed_attempts"):
            values[name] = tuple(values[name])
        return cls(**values)


_SEGMENT_NAME = re.compile(r"(\d+)-(\d+)(?:-(\d+))?(?:\.(\d+))?\.jsonl")


def segment_path(journal: Path, worker: str, run: int, start: int, clip: int | None = None) -> Path:
    """Return the path of the segment of a worker's `start`, from 1; with `clip`, of one of its clip processes.

    A clip process that takes the place of another gets a greater number, so that its lines count as the later ones.
    """
    name = f"{run:05d}-{start:03d}" if clip is None else f"{run:05d}-{start:03d}-{clip}"
    return journal / worker / f"{name}.jsonl"


def list_segments(journal: Path, workers: str = "") -> list[Path]:
    """Return every segment, of workers whose names begin with `workers`, oldest first."""
    segments = (path for path in journal.glob(f"{workers}*/*.jsonl") if _SEGMENT_NAME.fullmatch(path.name))
    return sorted(segments, key=lambda path: (_numbers(path), path.parent.name))


def segments_of(journal: Path, worker: str, run: int, start: int) -> list[Path]:
    """Return the segments of one start of a worker, oldest first: its own, and those of its clip processes."""
    return [path for path in _segments_in(journal, worker) if _numbers(path)[:2] == (run, start)]


def parts_of(segment: Path) -> list[Path]:
    """Return what there is of a segment: itself, or its parts, oldest first."""
    return [segment] if segment.exists() else sorted(segment.parent.glob(f"{segment.stem}.*.jsonl"), key=_numbers)


def next_run(journal: Path) -> int:
    """Return the number of a run that starts now, from 1."""
    return 1 + max((_numbers(path)[0] for path in list_segments(journal)), default=0)


def next_start(journal: Path, worker: str, run: int) -> int:
    """Return the number of a worker's next start in a run, from 1."""
    starts = (_numbers(path)[1] for path in _segments_in(journal, worker) if _numbers(path)[0] == run)
    return 1 + max(starts, default=0)


def _segments_in(journal: Path, worker: str) -> list[Path]:
    segments = (path for path in (journal / worker).glob("*.jsonl") if _SEGMENT_NAME.fullmatch(path.name))
    return sorted(segments, key=_numbers)


def _numbers(segment: Path) -> tuple[int, ...]:
    """Return (run, start), (run, start, clip process), or that and the part."""
    found = _SEGMENT_NAME.fullmatch(segment.name)
    assert found is not None, segment
    return tuple(int(number) for number in found.groups() if number is not None)


class SegmentWriter:
    """Appends outcomes to one new segment. They are on the disk when `append` returns."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("xb", buffering=0)
        for folder in path.parents[:3]:  # the worker's, the journal and the run's: each may be new
            sync_folder(folder)

    def append(self, outcomes: Iterable[Outcome]) -> None:
        whole = self._file.tell()
        data = memoryview(b"".join(outcome.to_line() for outcome in outcomes))
        try:
            while data:
                data = data[self._file.write(data) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(whole)  # so that a full disk leaves no partial line
            raise

    def close(self) -> None:
        self._file.close()


class PartWriter:
    """Writes outcomes as the next part of one segment: whole, and never changed. They are kept when `append` returns.

    `create` puts a part into the store; it gets the part's path in the working copy, which has it then too.
    """

    def __init__(self, path: Path, create: Callable[[Path, bytes], None]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._create, self._num_parts = path, create, 0

    def append(self, outcomes: Iterable[Outcome]) -> None:
        content = b"".join(outcome.to_line() for outcome in outcomes)
        if not content:
            return
        self._num_parts += 1
        part = self._path.with_name(f"{self._path.stem}.{self._num_parts:06d}.jsonl")
        self._create(part, content)
        temporary = part.with_suffix(".tmp")
        temporary.write_bytes(content)
        temporary.rename(part)

    def close(self) -> None:
        """Nothing is open."""


def read_lines(segment: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (offset in bytes, line) for the complete lines of a segment; a torn last line is left out."""
    offset = 0
    with segment.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield offset, line
            offset += len(line)


class Head(NamedTuple):
    """The part of a line that the index keeps."""

    offset: int  # of the line in its segment, in bytes
    row_id: str
    fingerprint: str
    input_digest: str
    status: Status
    audio_bytes: int
    codes_bytes: int
    duration_s: float
    suffix: str  # of the audio file, as ".wav"; "" without one


def read_heads(segment: Path) -> Iterator[Head]:
    """Yield the head of each line; damaged lines are left out."""
    for offset, line in read_lines(segment):
        try:
            head = _head(offset, _parse(line))
        except (ValueError, KeyError, TypeError):
            continue
        if head.status in _STATUSES:
            yield head


def _head(offset: int, values: dict[str, Any]) -> Head:
    audio = values["audio"]
    return Head(
        offset,
        values["id"],
        values["fingerprint"],
        values["input_digest"],
        values["status"],
        values["audio_bytes"],
        values.get("codes_bytes", 0),  # lines of the first versions have none
        values["duration_s"] or 0.0,
        audio[audio.rindex(".") :] if audio else "",
    )


def _parse(line: bytes) -> dict[str, Any]:
    try:
        values = from_json(line, cache_strings="keys")  # nearly twice as fast as json
    except ValueError:
        values = json.loads(line)  # which reads half of a surrogate pair too
    if not isinstance(values, dict):
        raise ValueError("The line is not a JSON object.")
    return values


def read_outcomes(segment: Path) -> Iterator[Outcome]:
    """Yield the outcomes of a segment; damaged lines are left out."""
    for _, line in read_lines(segment):
        try:
            yield Outcome.from_line(line)
        except (ValueError, KeyError, TypeError):
            continue


def mend(journal: Path, workers: str = "") -> int:
    """Truncate torn last lines of segments; return how many there were. Only for the holder of these workers' lock."""
    torn = 0
    for segment in list_segments(journal, workers):
        whole = _whole_length(segment)
        if whole < segment.stat().st_size:
            os.truncate(segment, whole)
            torn += 1
    return torn


def _whole_length(segment: Path) -> int:
    """Return the length up to and including the last newline, looking from the end."""
    with segment.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65_536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
    return 0


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
