"""The Python API: `synth` runs a table as the command line does; a `Synthesizer` holds one engine in this process."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile

from tts_batch.choices import Task
from tts_batch.clip import Clip
from tts_batch.config import JobConfig, JobOptions, build_config
from tts_batch.dataset.audio import load_reference
from tts_batch.dataset.notes import Notes
from tts_batch.dataset.rows import read_tables
from tts_batch.engine.errors import EngineError
from tts_batch.engine.registry import open_engine
from tts_batch.engine.request import SAMPLE_RATE_HZ, Engine, Reference
from tts_batch.errors import CannotContinueError, ExitStatus, RowError, UsageError
from tts_batch.ipc.messages import ActiveRow, Deadlines, EngineLabels
from tts_batch.memory_table import RowsTable, as_arrow, write_table
from tts_batch.object_store import is_url
from tts_batch.plan.models import ModelGroup, Models
from tts_batch.plan.planner import make_fetcher
from tts_batch.plan.rows import PlannedRow, plan_rows
from tts_batch.records import Failure
from tts_batch.run.job import run_job
from tts_batch.run.pool import Limits
from tts_batch.run.row_requests import clip_rules, engine_config, row_request
from tts_batch.run.signals import StoppedEarlyError, StopSignals
from tts_batch.store.schema import FAILURES, MANIFEST
from tts_batch.store.status import JobSummary
from tts_batch.store.storage import shown, storage_of, working_folder
from tts_batch.worker.finish import FinishedClip, finish_clip
from tts_batch.worker.references import Tails
from tts_batch.worker.row_maker import RowMaker

__all__ = ["Clip", "SynthResult", "Synthesizer", "synth"]

Done = TypeVar("Done")

STEP_S = 0.05  # until rows are looked for again that may have come meanwhile
DROP_S = 10.0  # for an engine to end what is aborted
_LIMITS = Limits()
_NO_AUDIO = np.zeros(0, np.float32)
# What means something only for a table and a run folder.
_RUN_OPTIONS = frozenset(
    {"data", "out", "limit", "shard", "launcher", "ray_address", "skip_existing", "gpus", "takes", "redo", "strict"}
    | {"format", "save_codes", "keep_failed_audio", "allow_mixed", "extend", "prune", "overwrite", "progress"}
)


def synth(
    table: Any, *, out: str | os.PathLike[str], config: JobConfig | None = None, **options: Unpack[JobOptions]
) -> SynthResult:
    """Make the clips of a table, or resume: `tts-batch synth` with the same options, as keywords.

    `table` is a path (or several), a list of dicts, a pyarrow table or a pandas frame. What has no path is written
    into the run folder first. The same call again resumes. `config` gives all options at once; keywords win. Works in
    scripts without a `__main__` guard, in notebooks and inside a running event loop; it blocks until the run has ended.

    Raises UsageError and CannotContinueError, and KeyboardInterrupt once an interrupted run has stopped cleanly, with
    what is done as its `result`. Rows
    that fail do not raise: see `SynthResult.failures`.
    """
    folder = Path(out)
    paths = _paths(table)
    given = config.model_dump(exclude_unset=True) if config is not None else {}
    job = build_config({**given, **options, "out": folder, "data": paths or [str(folder)]})
    written: Path | None = None
    earlier = set(folder.glob("rows-*.parquet"))
    if not paths:
        stored = _store_table(table, folder, job.map)
        written = None if is_url(stored) else Path(stored)
        job = job.model_copy(update={"data": (stored,)})
    stop = StopSignals()
    try:
        result = SynthResult(run_job(job, stop=stop))
    except (UsageError, StoppedEarlyError) as error:
        if written is not None and written not in earlier:
            written.unlink(missing_ok=True)  # nothing came of it
            with suppress(OSError):
                folder.rmdir()
        if isinstance(error, StoppedEarlyError) and stop.signal_number == signal.SIGINT:
            raise SynthInterrupt from None
        raise
    if stop.signal_number == signal.SIGINT:
        raise SynthInterrupt(result)
    return result


class SynthInterrupt(KeyboardInterrupt):
    """A run was interrupted, and has stopped cleanly. The same call goes on with it."""

    def __init__(self, result: SynthResult | None = None) -> None:
        super().__init__()
        self.result = result  # what is done; None: nothing was begun


def _store_table(table: Any, out: Path, mapping: Mapping[str, str]) -> str:
    """Write rows that have no path into the run folder; return the path or URL of the table."""
    with working_folder(out, journal=False) as folder:
        written = write_table(as_arrow(table, mapping), folder, mapping)
        storage_of(folder).publish(written)
    return str(written) if folder == out else f"{shown(out)}/{written.name}"


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
    def pending(self) -> int:
        """Rows that are still to be made: the run was stopped."""
        return self.summary.pending

    @property
    def is_complete(self) -> bool:
        """Whether every row has ended, ok or failed."""
        return self.summary.exit_status in (ExitStatus.OK, ExitStatus.SOME_FAILED)

    @property
    def out(self) -> Path:
        """The run folder."""
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
        columns = ["row_index", "id", "text", "status", "audio", "seed", "num_frames", *named.values()]
        with working_folder(self.out, journal=False, tables=True) as folder:
            storage = storage_of(folder)
            for batch in pq.ParquetFile(folder / MANIFEST).iter_batches(256, columns=columns):
                for row in batch.to_pylist():
                    if row["status"] != "ok":
                        continue
                    audio, sample_rate = soundfile.read(BytesIO(storage.read(row["audio"])), dtype="float32")
                    effective = {name: row[column] for name, column in named.items() if row[column] is not None}
                    yield Clip(
                        row["id"], row["text"], audio, sample_rate, row["seed"], row["num_frames"], effective,
                        row_index=row["row_index"],
                    )  # fmt: skip

    def _read(self, name: str) -> pa.Table:
        with working_folder(self.out, journal=False, tables=True) as folder:
            return pq.read_table(folder / name)


class Synthesizer:
    """One model held open in this process, for single clips and for streams of them. Use it in a `with` block.

    `model` is a checkpoint folder, a hub id, "tiny" or "tiny-random"; None takes the released checkpoint that fits
    each row. `options` are those of `synth` that concern the model, the sampling and the defaults of rows. One call
    at a time: it is not for several threads.
    """

    def __init__(self, model: str | None = None, /, **options: Unpack[JobOptions]) -> None:
        """Raises UsageError for an invalid option, CannotContinueError when the model is unavailable or cannot open."""
        refused = sorted(_RUN_OPTIONS & options.keys())
        if refused:
            raise UsageError(f"The option {refused[0]!r} belongs to a run over a table: use tts_batch.synth.")
        if model is not None:
            options["model"] = model
        self._config = build_config({**options, "data": ["rows"], "out": ".", "strict": True})
        self._closed = False
        self._engines: dict[Task | None, Engine] = {}  # by the model's task, opened when the first row needs it
        self._tails = Tails()
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
        the clip cannot be made, CannotContinueError when the engine fails.
        """
        (clip,) = self.stream([{"text": text, **columns}])
        if clip.failure is not None:
            raise RowError(clip.failure.reason, clip.failure.message)
        return clip

    def stream(self, rows: Iterable[Mapping[str, Any]], *, ordered: bool = False) -> Iterator[Clip]:
        """Make a clip of every row and yield each as soon as it is finished, so not in the rows' order.

        `ordered`: in the rows' order. A clip then waits in memory until those before it are finished.

        `rows` may be endless: they are taken only as the engine has room, on this thread. A row that cannot be made
        comes back as a clip with a `failure`. Leaving the loop drops what is under way. Raises UsageError as `speak`
        does, and CannotContinueError when the engine fails.
        """
        table = RowsTable(rows)
        if not table.columns:
            return
        config, notes = self._config, Notes()
        read = read_tables([table], config, notes, with_extras=False, fetcher=self._fetcher)
        planned = plan_rows(read, config, self._models, notes)
        yield from _in_order(self._make_all(planned)) if ordered else self._make_all(planned)

    def _make_all(self, rows: Iterator[PlannedRow]) -> Generator[Clip, None, None]:
        for model, members in _by_model(rows):
            yield from self._make(model, members) if model else map(_failed_clip, members)

    def _make(self, model: ModelGroup, rows: Iterator[PlannedRow]) -> Iterator[Clip]:
        """Make rows of one model. Those that failed in the plan are passed on between the others."""
        under_way: dict[str, PlannedRow] = {}
        clips: deque[Clip] = deque()
        rules, labels = clip_rules(self._config, model), EngineLabels(model=model.name, engine=self._config.engine)

        def finish(row: ActiveRow) -> None:
            finished = finish_clip(row, rules, labels, self._tails, encode=False)
            if finished.retry is not None:
                maker.retry(finished.retry)
            else:
                maker.row_ended(row.id)
                clips.append(_clip(under_way.pop(row.id), finished))

        maker = RowMaker(
            self._engine_of(model),
            finish,
            Deadlines(_LIMITS.answer_s, _LIMITS.answer_frame_s, self._config.row_time_limit),
        )
        error: Exception | None = None
        source: Iterator[PlannedRow] | None = rows
        try:
            while source is not None or maker.has_rows or clips:
                while source is not None and not clips and self._computes(model, lambda: maker.wants_rows):
                    try:
                        planned = next(source, None)
                    except Exception as caught:  # of the caller's iterator: what is under way is finished first
                        planned, error = None, caught
                    if planned is None:
                        source = None
                    elif planned.row.failure is not None:
                        clips.append(_failed_clip(planned))
                    else:
                        under_way[planned.row.id] = planned
                        maker.add(ActiveRow(row_request(planned, self._config, _reference(planned))))
                self._computes(model, maker.feed)
                if maker.has_rows:
                    self._computes(model, lambda: maker.step(0.0 if clips else STEP_S))
                while clips:
                    yield clips.popleft()
        finally:
            self._drop(model, maker)
        if error is not None:
            raise error

    def _computes(self, model: ModelGroup, work: Callable[[], Done]) -> Done:
        """Do what needs the engine. One that raises is dead: another takes its place at the next call."""
        try:
            return work()
        except Exception as error:
            self._discard_engine(model)
            raise CannotContinueError(f"The engine failed ({error}); the next call opens another.") from error

    def _drop(self, model: ModelGroup, maker: RowMaker) -> None:
        """Drop what is under way, so that the next call finds an idle engine, or opens another."""
        deadline_s = time.monotonic() + DROP_S
        try:
            maker.drop_unfinished()
            while maker.is_engine_busy and model.task in self._engines:
                if time.monotonic() > deadline_s:
                    self._discard_engine(model)
                    return
                maker.step(STEP_S)
        except Exception:  # it is dead, and nobody waits for it
            self._discard_engine(model)

    def _discard_engine(self, model: ModelGroup) -> None:
        engine = self._engines.pop(model.task, None)
        if engine is not None:
            with suppress(Exception):
                engine.close()

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


def _reference(planned: PlannedRow) -> Reference | None:
    row, key = planned.row, planned.reference_key
    if row.ref_audio is None or key is None:
        return None
    return Reference(key, partial(load_reference, row.ref_audio), row.ref_text)


def _clip(planned: PlannedRow, finished: FinishedClip) -> Clip:
    outcome, result = finished.outcome, finished.result
    assert outcome is not None
    if outcome.reason is not None:
        return _failed_clip(planned, Failure(outcome.reason, outcome.message or ""), seed=outcome.seed)
    assert result is not None and result.audio is not None, "a row without a reason to fail is a clip"
    row = planned.row
    return Clip(
        row.id, row.text, result.audio, result.sample_rate, outcome.seed, result.num_frames, result.effective,
        row_index=row.row_index,
    )  # fmt: skip


def _failed_clip(planned: PlannedRow, failure: Failure | None = None, seed: int | None = None) -> Clip:
    row = planned.row
    failure = failure or row.failure
    return Clip(row.id, row.text, _NO_AUDIO, SAMPLE_RATE_HZ, seed, failure=failure, row_index=row.row_index)


def _in_order(clips: Generator[Clip, None, None]) -> Iterator[Clip]:
    """Yield the clips in the order of their rows; each waits for those before it."""
    waiting: dict[int, Clip] = {}
    number = 0
    with closing(clips):  # what is under way is dropped when the caller leaves
        for clip in clips:
            waiting[clip.row_index] = clip
            while number in waiting:
                yield waiting.pop(number)
                number += 1
