"""The notebook door: `synth` goes the command line's way; a `Synthesizer` holds one engine open in this process."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile

from tts_batch.clip import Clip
from tts_batch.config import JobConfig, build_config
from tts_batch.dataset.audio import load_reference
from tts_batch.dataset.notes import Notes
from tts_batch.dataset.rows import read_tables
from tts_batch.engine.errors import EngineError
from tts_batch.engine.registry import open_engine
from tts_batch.engine.request import SAMPLE_RATE_HZ, Engine, Reference, SpeechRequest, SpeechResult
from tts_batch.errors import CannotContinueError, RowError, UsageError
from tts_batch.memory_table import RowsTable, as_arrow, write_table
from tts_batch.plan.models import ModelGroup, Models
from tts_batch.plan.planner import make_fetcher
from tts_batch.plan.rows import PlannedRow, plan_rows
from tts_batch.records import Failure
from tts_batch.run.job import run_job
from tts_batch.run.requests import engine_config, piece_seeds, request_fields
from tts_batch.store.schema import FAILURES, MANIFEST
from tts_batch.store.status import JobSummary
from tts_batch.worker.checks import find_fault
from tts_batch.worker.pieces import join, of_piece
from tts_batch.worker.trim import trim

__all__ = ["Clip", "SynthResult", "Synthesizer", "synth"]

_NO_AUDIO = np.zeros(0, np.float32)
# What means something only for a table and a run folder.
_RUN_OPTIONS = frozenset(
    {"data", "out", "limit", "shard", "launcher", "gpus", "attempts", "takes", "retry_changes_seed"}
    | {"row_time_limit", "checks", "redo", "strict"}
    | {"format", "save_codes", "keep_failed_audio", "allow_mixed", "overwrite", "progress"}
)


def synth(table: Any, *, out: str | os.PathLike[str], **options: Any) -> SynthResult:
    """Make the clips of a table, or go on with them: `tts-batch synth` with the same options, as keywords.

    `table` is a path (or several), a list of dicts, a pyarrow table or a pandas frame. What has no path is written
    into the run folder first. The same call again resumes. Works in scripts without a `__main__` guard, in notebooks
    and inside a running event loop; it blocks until the run has ended.

    Raises UsageError and CannotContinueError. Rows that fail do not raise: see `SynthResult.failures`.
    """
    folder = Path(out)
    paths = _paths(table)
    config = build_config({**options, "out": folder, "data": paths or [str(folder)]})
    if not paths:
        written = write_table(as_arrow(table), folder, config.map)
        config = config.model_copy(update={"data": (str(written),)})
    return SynthResult(run_job(config))


def _paths(table: Any) -> list[str]:
    if isinstance(table, str | os.PathLike):
        return [os.fspath(table)]
    if isinstance(table, list | tuple) and table and all(isinstance(path, str | os.PathLike) for path in table):
        return [os.fspath(path) for path in table]
    return []


@dataclass(frozen=True, slots=True)
class SynthResult:
    """A run that has ended, and its folder."""

    summary: JobSummary

    @property
    def ok(self) -> int:
        """Rows with a clip, those of earlier runs included."""
        return self.summary.ok

    @property
    def failed(self) -> int:
        """Rows without one; `failures()` says why."""
        return self.summary.failed

    @property
    def out(self) -> Path:
        return self.summary.out

    def manifest(self) -> pa.Table:
        """One row for every input row, in input order."""
        return self._read(MANIFEST)

    def failures(self) -> pa.Table:
        """The manifest's rows that failed."""
        return self._read(FAILURES)

    def clips(self) -> Iterator[Clip]:
        """The clips that were made, in input order, each read from disk when its turn comes."""
        named = {"language": "effective_language", "speaker": "effective_speaker"}
        columns = ["id", "text", "status", "audio", "seed", "num_frames", *named.values()]
        for batch in pq.ParquetFile(self.out / MANIFEST).iter_batches(256, columns=columns):
            for row in batch.to_pylist():
                if row["status"] != "ok":
                    continue
                audio, sample_rate = soundfile.read(self.out / row["audio"], dtype="float32")
                effective = {name: row[column] for name, column in named.items() if row[column] is not None}
                yield Clip(row["id"], row["text"], audio, sample_rate, row["seed"], row["num_frames"], effective)

    def _read(self, name: str) -> pa.Table:
        return pq.read_table(self.out / name)


class Synthesizer:
    """One model held open in this process, for single clips and for streams of them. Use it in a `with` block.

    `model` is a checkpoint folder, a hub id, "tiny" or "tiny-random"; None takes the released checkpoint that fits
    each row. `options` are those of `synth` that concern the model, the sampling and the defaults of rows. One call
    at a time: it is not for several threads.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        """Raises UsageError for a useless option, CannotContinueError when the model cannot be had or opened."""
        refused = sorted(_RUN_OPTIONS & options.keys())
        if refused:
            raise UsageError(f"The option {refused[0]!r} belongs to a run over a table: use tts_batch.synth.")
        self._config = build_config({**options, "model": model, "data": ["rows"], "out": ".", "strict": True})
        self._closed = False
        self._engines: dict[str, Engine] = {}  # task → engine, opened when the first row needs it
        self._models = Models(self._config)
        self._fetcher = make_fetcher(self._config)
        for group in self._models.groups.values():
            self._engine_of(group)

    def __enter__(self) -> Synthesizer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the memory back. Nothing can be made afterwards."""
        self._closed = True
        while self._engines:
            self._engines.popitem()[1].close()

    def speak(self, text: str, **columns: Any) -> Clip:
        """Make one clip. `columns` are those of a table: language, speaker, instruct, ref_audio, ref_text, seed, …

        `ref_audio` is a path, the bytes of a file, or (samples, sample rate). Without a `seed` the same call gives
        the same clip. Raises UsageError for a column that a table cannot have and when this is closed, RowError when
        the clip cannot be made, CannotContinueError when the engine breaks.
        """
        (clip,) = self.stream([{"text": text, **columns}])
        if clip.failure is not None:
            raise RowError(clip.failure.reason, clip.failure.message)
        return clip

    def stream(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Clip]:
        """Make a clip of every row and yield each as soon as it is finished, so not in the rows' order.

        `rows` may be endless: they are taken only as the engine has room, on its thread. A row that cannot be made
        comes back as a clip with a `failure`. Leaving the loop drops what is under way. Raises UsageError as `speak`
        does, and CannotContinueError when the engine breaks.
        """
        table = RowsTable(rows)
        if not table.columns:
            return
        config, notes = self._config, Notes()
        read = read_tables([table], config, notes, with_extras=False, fetcher=self._fetcher)
        planned = plan_rows(read, config, self._models, notes)
        for model, members in _by_model(planned):
            yield from self._make(model, members) if model else map(_failed_clip, members)

    def _make(self, model: ModelGroup, rows: Iterator[PlannedRow]) -> Iterator[Clip]:
        """Make rows of one model. Those that failed in the plan are passed on between the others."""
        under_way: dict[str, _Speaking] = {}  # request id → row
        failed: deque[PlannedRow] = deque()
        broken: list[Exception] = []

        def requests() -> Iterator[SpeechRequest]:
            try:
                for planned in rows:
                    if planned.row.failure is not None:
                        failed.append(planned)
                        continue
                    row = _Speaking(planned, self._config)
                    for request in row.requests:
                        if not row.has_ended:
                            under_way[request.request_id] = row
                            yield request
            except Exception as error:  # of the caller's iterator: no fault of the engine's
                broken.append(error)

        engine = self._engine_of(model)
        results = self._generate(model, requests())
        try:
            for result in results:
                yield from _failed_clips(failed)
                row = under_way.pop(result.request_id, None)
                if row is not None and (clip := row.receive(result)) is not None:
                    for request in row.requests:  # of a row that failed: what else of it is under way
                        if under_way.pop(request.request_id, None):
                            engine.cancel(request.request_id)
                    yield clip
        finally:
            results.close()  # what is under way is dropped now, not when it is collected
        yield from _failed_clips(failed)
        if broken:
            raise broken[0]
        for row in dict.fromkeys(under_way.values()):
            if not row.has_ended:
                message = "The engine ended without a result for this row."
                yield _failed_clip(row.planned, Failure("engine_error", message))

    def _generate(self, model: ModelGroup, requests: Iterator[SpeechRequest]) -> Generator[SpeechResult, None, None]:
        """Yield the engine's results. One that raises is dead: another takes its place at the next call."""
        engine = self._engine_of(model)
        try:
            yield from engine.generate(requests)
        except Exception as error:
            del self._engines[model.task]
            with suppress(Exception):
                engine.close()
            raise CannotContinueError(f"The engine broke ({error}); the next call opens another.") from error

    def _engine_of(self, model: ModelGroup) -> Engine:
        if self._closed:
            raise UsageError("This Synthesizer is closed: use it inside its `with` block, or open another.")
        if model.task not in self._engines:
            config = engine_config(self._config, model, self._config.device)
            try:
                self._engines[model.task] = open_engine(self._config.engine, config)
            except EngineError as error:
                raise CannotContinueError(str(error)) from error
        return self._engines[model.task]


def _by_model(rows: Iterator[PlannedRow]) -> Iterator[tuple[ModelGroup | None, Iterator[PlannedRow]]]:
    """Runs of rows for one model. A failed row goes with those before it, so that it interrupts no batch."""
    model: ModelGroup | None = None

    def model_of(planned: PlannedRow) -> ModelGroup | None:
        nonlocal model
        model = planned.model_group or model
        return model

    return groupby(rows, model_of)


class _Speaking:
    """A row under way: its requests, one for each piece of its text, and their results as they come."""

    def __init__(self, planned: PlannedRow, config: JobConfig) -> None:
        self.planned = planned
        self.requests = [_request(planned, number, config) for number in range(len(planned.pieces))]
        self.has_ended = False
        self._config = config
        self._results: dict[str, SpeechResult] = {}

    def receive(self, result: SpeechResult) -> Clip | None:
        """Return the clip when this was the last piece of it, or one that failed."""
        if self.has_ended:
            return None
        if self._config.trim:
            result, _ = trim(result, self._config.trim_margin_s)
        (number,) = (at for at, request in enumerate(self.requests) if request.request_id == result.request_id)
        failure = find_fault(result, self.requests[number].max_frames)
        self._results[result.request_id] = result
        if failure is None and len(self._results) < len(self.requests):
            return None
        self.has_ended = True
        if self.planned.is_split and failure is not None:
            failure = of_piece(failure, number, len(self.requests))
        elif self.planned.is_split:
            in_order = [self._results[request.request_id] for request in self.requests]
            result = join(in_order, self._config.split_pause_s)
            failure = find_fault(result, self.planned.max_frames)
        return self._clip(result, failure)

    def _clip(self, result: SpeechResult, failure: Failure | None) -> Clip:
        audio = result.audio if failure is None and result.audio is not None else _NO_AUDIO
        row, seed = self.planned.row, self.planned.seed
        return Clip(row.id, row.text, audio, result.sample_rate, seed, result.num_frames, result.effective, failure)


def _request(planned: PlannedRow, number: int, config: JobConfig) -> SpeechRequest:
    row, reference = planned.row, None
    if row.ref_audio is not None and planned.reference_key is not None:
        reference = Reference(planned.reference_key, partial(load_reference, row.ref_audio), row.ref_text)
    fields, seed = request_fields(planned, number), piece_seeds(planned, number, config)[0]
    return SpeechRequest(**fields, seed=seed, sampling=planned.sampling, reference=reference)


def _failed_clips(failed: deque[PlannedRow]) -> Iterator[Clip]:
    while failed:
        yield _failed_clip(failed.popleft())


def _failed_clip(planned: PlannedRow, failure: Failure | None = None) -> Clip:
    row = planned.row
    return Clip(row.id, row.text, _NO_AUDIO, SAMPLE_RATE_HZ, failure=failure or row.failure)
