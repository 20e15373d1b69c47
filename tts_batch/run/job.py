"""The main path, parent's side: lock → plan → resume → workers → manifest → summary. It never imports torch."""

from __future__ import annotations

import errno
import time
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tts_batch.config import JobConfig
from tts_batch.dataset.files import find_tables
from tts_batch.errors import CannotContinueError, Reason, UsageError
from tts_batch.ipc.messages import RowRequest
from tts_batch.object_store import StoreError
from tts_batch.plan.planner import GroupTotals, Plan, PlannedRow, iter_planned, make_plan
from tts_batch.plan.shards import Shard
from tts_batch.records import Failure
from tts_batch.run.devices import Device, find_devices
from tts_batch.run.dispatch import Dispatch
from tts_batch.run.earlier_run import EarlierRun
from tts_batch.run.existing_run import compact_if_last, find_lines
from tts_batch.run.other_rows import OtherRows
from tts_batch.run.plan_spool import PlanSpool
from tts_batch.run.pool import Limits, Pool
from tts_batch.run.progress import Progress
from tts_batch.run.reference_spool import ReferenceSpool
from tts_batch.run.resume import Resumed, reopen, resume
from tts_batch.run.row_requests import open_engine_message, row_request
from tts_batch.run.signals import Interrupted, SecondInterrupt, StoppedEarlyError, StopSignals
from tts_batch.store.clips import check_format
from tts_batch.store.index import JournalIndex
from tts_batch.store.journal import Outcome, PartWriter, SegmentWriter, next_run, segment_path
from tts_batch.store.lock import RunLock
from tts_batch.store.manifest import Totals, count_rows, write_manifests
from tts_batch.store.run_json import add_to_history, describe_run, now, read_run, write_run
from tts_batch.store.schema import FAILURES, MANIFEST
from tts_batch.store.status import JobSummary, read_status, summarise
from tts_batch.store.storage import Storage, shown, storage_of, url_of, working_folder
from tts_batch.worker.finish import poison_outcome

if TYPE_CHECKING:
    from tts_batch.run.ray_launcher import RayLauncher

__all__ = ["JobSummary", "Limits", "read_status", "run_job"]

QUICK_MANIFEST_ROWS = 100_000
"""After a stop the manifest is written for so many rows at most: a scheduler kills what takes its time."""


def run_job(
    config: JobConfig,
    *,
    limits: Limits | None = None,
    retry: Collection[Reason] = (),
    stop: StopSignals | None = None,
) -> JobSummary:
    """Make the clips of a table, or go on with it; rows that failed for a reason in `retry` are made again.

    `stop`: what turns signals into a request to stop, for callers who look at it afterwards.

    Raises UsageError, CannotContinueError and StoppedEarlyError with a sentence for the user, KeyboardInterrupt after a
    second signal. What is done stays done in every case, and no process is left behind.
    """
    if (url_of(config.out) or "").startswith("memory:"):
        raise UsageError("memory:// belongs to one process, and a run has several: use another --out.")
    with working_folder(config.out, tables=config.extend) as folder:
        summary = _run_in(config.model_copy(update={"out": folder}), limits, retry, stop or StopSignals())
    return replace(summary, out=config.out)


def _run_in(config: JobConfig, limits: Limits | None, retry: Collection[Reason], stop: StopSignals) -> JobSummary:
    shard = _check_usage(config)
    storage = storage_of(config.out)
    launcher = _open_launcher(config, storage)  # before signals are ours: Ray takes SIGTERM when it connects
    new_folders = [folder for folder in (config.out, *config.out.parents) if not folder.exists()]
    try:
        devices = launcher.devices if launcher else _chosen_devices(config)
        with stop:
            with storage.lock(shard) as lock:
                job = _Job(config, limits or Limits(), stop, lock, shard, devices, launcher)
                with closing(job):
                    summary = job.run(retry)
            if not shard.is_whole:
                compact_if_last(config, job.plan, job.others)
            return summary
    except Interrupted:
        if stop.requested:
            raise SecondInterrupt from None
        raise StoppedEarlyError("Stopped before any row was made; the same command starts again.") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CannotContinueError(
                f"The disk of {config.out} is full. Make room; the same command resumes."
            ) from None
        raise
    finally:
        if launcher is not None:
            launcher.close()
        with suppress(OSError):
            for folder in new_folders:
                folder.rmdir()  # only when nothing came of it


def _check_usage(config: JobConfig) -> Shard:
    if config.launcher == "ray" and config.gpus is not None:
        raise UsageError("--gpus picks among the GPUs of this machine, and Ray places workers itself: leave it out.")
    if config.overwrite and (config.redo or config.shard):
        raise UsageError("--overwrite makes every row again, of every shard: use it without --redo and --shard.")
    if config.extend and config.prune:
        raise UsageError("--extend keeps what --prune removes: give one of them.")
    check_format(config.format)
    written = {(config.out / name).resolve() for name in (MANIFEST, FAILURES)}
    for table in find_tables(config.data):
        if table.is_local and Path(table.path).resolve() in written:
            raise UsageError(
                f"{table.path} is written by the run itself: name the table that it was made from, or a copy. "
                f"`tts-batch retry {config.out}` makes the failed rows again."
            )
    return Shard.parse(config.shard)


def _open_launcher(config: JobConfig, storage: Storage) -> RayLauncher | None:
    """Return what starts the workers elsewhere; None: they are started on this machine."""
    if config.launcher == "local":
        return None
    from tts_batch.run.ray_launcher import open_launcher

    url = storage.shown if storage.is_remote else None
    return open_launcher(config.ray_address, config.device, config.placement, url)


def _chosen_devices(config: JobConfig) -> list[Device] | None:
    """Return what the user picks among the devices, before anything is written; None: all, to be found when needed."""
    if config.gpus is None and config.placement == "colocated" and config.device in ("auto", "cpu"):
        return None
    return find_devices(config.device, config.gpus, config.placement)


class _NotDoneError(Exception):
    """A row is still to be made."""


class _Job:
    """One run over a folder, or over a shard of it; the pool's listener."""

    plan: Plan
    _engines: list[dict[str, str]]  # what the folder's rows were computed with, as the engines said it

    def __init__(
        self, config: JobConfig, limits: Limits, stop: StopSignals, lock: RunLock, shard: Shard,
        devices: list[Device] | None, launcher: RayLauncher | None,
    ) -> None:  # fmt: skip
        self._config, self._limits, self._stop, self._lock, self._shard = config, limits, stop, lock, shard
        self._devices, self._launcher = devices, launcher
        self._out = config.out.resolve()
        self._journal = self._out / "journal"
        self._started, self._started_at = time.monotonic(), now()
        self._ready: float | None = None  # when the first model was loaded
        self._made, self._made_audio_s = 0, 0.0
        self._own_segment: SegmentWriter | PartWriter | None = None
        self._plan_spool: PlanSpool | None = None
        self._pool: Pool | None = None

    def run(self, retry: Collection[Reason]) -> JobSummary:
        config = self._config
        self.others = OtherRows(config)
        plan = self.plan = make_plan(config, watch=self.others.watch)
        self._before = self._resume(overwrite=config.overwrite)
        self._command = "retry" if retry else "synth"
        self._num_kept = self.others.num_kept(self._out) if self._shard.is_whole else 0
        self.others.check(self._before.index)
        pruned = self.others.prune(self._before.index, self._shard, lambda: self._segment)
        if pruned:
            self._before = self._resume()
        self._engines = [] if config.overwrite else read_run(self._out).get("engines", [])
        if config.redo or retry:
            lines = find_lines(self._before.index, config.redo, retry, self._shard)
            self._describe("running")
            count = reopen(lines, self._segment)
            self._before = self._resume()
        self._describe("running")
        self._stop.gentle = True
        self._spool = ReferenceSpool(
            self._journal / f"{self._shard.name}references", storage_of(self._out) if self._launcher else None
        )
        with Progress(config.progress, plan.num_mine) as self._progress:
            for report in plan.tables:
                self.info(f"read: {report}")
            for note in plan.notes:
                self.info(note)
            if config.redo or retry:
                self.info(f"{count} rows are made again.")
            if pruned:
                self.info(f"The clips of {pruned} rows that are not in the table were removed.")
            if config.skip_existing is not None:
                self._copy_earlier(config.skip_existing)
            self._progress.keep(plan.num_mine - sum(group.num_mine for group in plan.groups), failed=True)
            if (totals := self._sum_up_if_done()) is not None:
                return self._finish("finished", totals)
            try:
                for group in plan.groups:
                    self._make(group)
            except CannotContinueError:
                with suppress(OSError, StoreError):  # what could not take clips does not take a manifest either
                    self._finish("failed")
                raise
        return self._finish("stopped" if self._stop.requested else "finished")

    def _copy_earlier(self, run: Path) -> None:
        """Copy the clips of rows that are still to be made from an earlier run."""
        before = self._before
        segment = segment_path(self._journal, f"{self._shard.name}parent", before.run_number, 1, 1)
        with closing(EarlierRun(self._config, run, segment)) as earlier:
            for planned in self._planned():
                if self._stop.requested:
                    break
                is_todo = planned.model_group and before.index.standing(planned, mixed=before.mixed) == "todo"
                if is_todo and before.index.reopened(planned, mixed=before.mixed) is None:
                    before.index.forget_clip(planned.row.id)
                    earlier.take(planned)
            earlier.flush()
        self.info(f"{earlier.num_copied} clips are copied from {shown(run)}.")
        self._before = self._resume()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.end()
        if self._own_segment is not None:
            self._own_segment.close()
        if self._plan_spool is not None:
            self._plan_spool.close()

    def _resume(self, *, overwrite: bool = False) -> Resumed:
        allow_mixed = self._config.allow_mixed
        return resume(self._out, self.plan.settings, self._shard, overwrite=overwrite, allow_mixed=allow_mixed)

    def _sum_up_if_done(self) -> Totals | None:
        """Write the manifest in the very pass over the input that finds every row done; None when one is not.

        Tried where the journal has as many rows as the input: one pass less over a table that is done.
        """
        index, mixed = self._before.index, self._before.mixed
        if not self._shard.is_whole or index.ok + index.failed < self.plan.num_planned:
            return None

        def find(planned: PlannedRow) -> Outcome | None:
            is_todo = planned.model_group is not None and index.standing(planned, mixed=mixed) == "todo"
            if is_todo or self._stop.requested:
                raise _NotDoneError
            return index.outcome(planned, mixed=mixed)

        with suppress(_NotDoneError):
            totals = write_manifests(self._out, lambda: self._with_kept(self._planned()), find)
            self._progress.keep(totals.ok)
            self._progress.keep(totals.failed - self.plan.num_failed, failed=True)
            return totals
        return None

    def _make(self, group: GroupTotals) -> None:
        """Make the rows of one checkpoint on all devices; start nothing when they are done."""
        self._left = group.num_mine
        rows = self._rows_to_make(group)
        first = next(rows, None)
        if first is None:
            return
        devices = (self._devices or find_devices(self._config.device))[: self._left + 1]
        each = f"2 {devices[0].kind}" if self._config.placement == "split" else devices[0].kind
        self.info(f"{group.model.name}: up to {self._left + 1} rows on {len(devices)} × {each}.")
        answer_limits = self._limits.answer_s, self._limits.answer_frame_s
        opening = partial(open_engine_message, self._config, group, len(devices), answer_limits)
        names = self._journal, self._shard.name, self._before.run_number
        self._close_pool()  # its devices are free again
        self._pool = Pool(*names, devices, opening, self, self._limits, self._launcher)
        self._pool.run(Dispatch(chain([first], rows)), lambda: self._left, self._stop)

    def _close_pool(self) -> None:
        if self._pool is not None:
            self._pool.close()

    def _rows_to_make(self, group: GroupTotals) -> Iterator[RowRequest]:
        """Yield the group's rows that are not done, in input order."""
        before = self._before
        planned_rows = self._planned()
        if self._plan_spool is None:
            self._plan_spool = PlanSpool(self._journal)
            planned_rows = self._plan_spool.watch(planned_rows)
        for planned in planned_rows:
            if self._stop.requested:
                return
            if planned.model_group is not group.model:
                continue
            self._left -= 1
            standing = before.index.standing(planned, mixed=before.mixed)
            if standing == "todo":
                before.index.forget_clip(planned.row.id)
                reopened = before.index.reopened(planned, mixed=before.mixed)
                row, reference = planned.row, None
                if row.ref_audio is not None and planned.reference_key is not None:
                    reference = self._spool.pin(row.id, planned.reference_key, row.ref_audio, row.ref_text)
                yield row_request(planned, self._config, reference, reopened)
            else:
                self._progress.keep(failed=standing == "failed")

    def _planned(self) -> Iterator[PlannedRow]:
        """Yield the rows of this run's shard, planned from the input."""
        return (row for row in iter_planned(self._config, self.plan) if self._shard.holds(row.row.id))

    def _planned_again(self) -> Iterator[PlannedRow]:
        """Yield the rows of this run's shard, as they were dispatched where those are kept."""
        kept = self._plan_spool.rows() if self._plan_spool is not None else None
        return self._planned() if kept is None else kept

    def _with_kept(self, rows: Iterator[PlannedRow]) -> Iterator[PlannedRow]:
        return chain(rows, self.others.kept(self._out, self.plan.num_rows))

    @property
    def _segment(self) -> SegmentWriter | PartWriter:
        """The segment of what the parent itself records of rows."""
        if self._own_segment is None:
            number = next_run(self._journal)
            name = segment_path(self._journal, f"{self._shard.name}parent", number, 1)
            self._own_segment = storage_of(self._out).open_segment(name)
        return self._own_segment

    # Listener

    def worker_ready(self, engine: dict[str, str]) -> None:
        if self._ready is None:
            self._ready = time.monotonic()
            self._progress.start_clock()
        if engine not in self._engines:
            self._engines.append(engine)
            self._describe("running")

    def row_ended(self, row_id: str, audio_s: float | None) -> None:
        self._made += 1
        self._made_audio_s += audio_s or 0.0
        self._progress.end(audio_s or 0.0, failed=audio_s is None)
        self._spool.release(row_id)

    def row_is_poison(self, row: RowRequest, deaths: list[Failure], message: str) -> None:
        self._segment.append([poison_outcome(row, deaths, Failure(deaths[-1].reason, message))])
        self.row_ended(row.id, None)

    def info(self, sentence: str) -> None:
        self._progress.info(sentence)

    def warn(self, sentence: str) -> None:
        self._progress.warn(sentence)

    def tick(self) -> None:
        self._lock.check()
        self._progress.show()

    # the end

    def _finish(self, state: str, totals: Totals | None = None) -> JobSummary:
        """Compact the journal into the manifest, or count the shard's rows, and sum up; with `totals` that is done."""
        self._spool.remove()
        totals = totals or self._compact(state)  # while the workers close their engines
        self._close_pool()
        ended = time.monotonic()
        made_s = ended - self._ready if self._ready else 0.0
        summary = summarise(
            self._config.out,
            totals,
            rows=self.plan.num_mine + self._num_kept,
            failed=state == "failed",
            made=self._made,
            audio_s_per_s=self._made_audio_s / made_s if made_s else 0.0,
            wall_s=ended - self._started,
        )
        self._describe(state, summary)
        return summary

    def _compact(self, state: str) -> Totals:
        plan, mixed = self.plan, self._before.mixed
        index = JournalIndex(self._out) if self._made else self._before.index
        # A run that did not get to the end has not made anew what was lost of the clips before it.
        find = partial(index.outcome, mixed=mixed, with_files=state != "finished")
        if not self._shard.is_whole:
            return count_rows(self._planned_again(), find)
        if state == "finished" or plan.num_rows <= QUICK_MANIFEST_ROWS:
            return write_manifests(self._out, lambda: self._with_kept(self._planned_again()), find)
        return Totals.estimate(index.ok, index.failed, index.audio_s, plan.num_rows, plan.failures)

    def _describe(self, state: str, summary: JobSummary | None = None) -> None:
        if not self._shard.is_whole and summary is not None:
            state = "waiting for its other shards" if state == "finished" else state
            summary = None  # the last one says what came of the whole
        facts: dict[str, Any] = {"state": state, "started": self._started_at, "ended": now() if summary else None}
        facts |= {"runs": self._before.run_number, "mixed": self._before.mixed, "engines": self._engines}
        facts |= describe_run(self._config, self.plan, summary.to_dict() if summary else None, self._num_kept)
        before = read_run(self._out)
        facts["settings"] = {**_weights(before), **facts["settings"]}
        facts["history"] = add_to_history(before, self._command, facts)
        write_run(self._out, facts)


def _weights(run: dict[str, Any]) -> dict[str, Any]:
    """Return what models run.json names; a table of other rows may use none of them."""
    settings = run.get("settings", {})
    return {name: value for name, value in settings.items() if name.startswith("weights_")}
