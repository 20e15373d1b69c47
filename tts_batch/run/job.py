"""The main path, parent's side: lock → plan → resume → workers → manifest → summary. It never imports torch."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

from tts_batch.config import JobConfig
from tts_batch.errors import CannotContinueError, ExitStatus, Reason, UsageError
from tts_batch.plan.planner import GroupTotals, iter_planned, make_plan
from tts_batch.run.devices import find_devices
from tts_batch.run.dispatch import Dispatch, Work
from tts_batch.run.index import JournalIndex
from tts_batch.run.journal import SegmentWriter, segment_path
from tts_batch.run.lock import RunLock
from tts_batch.run.manifest import Totals, write_manifests
from tts_batch.run.pool import Limits, Pool
from tts_batch.run.progress import Progress
from tts_batch.run.references import ReferenceSpool
from tts_batch.run.requests import killer_outcome, row_message, start_message
from tts_batch.run.resume import resume
from tts_batch.run.signals import Interrupted, StoppedEarlyError, StopSignals
from tts_batch.run.summary import JobSummary, describe_run, now, read_status, write_run

__all__ = ["JobSummary", "Limits", "read_status", "run_job"]

QUICK_MANIFEST_ROWS = 100_000
"""After a stop the manifest is written for so many rows at most: a scheduler kills what takes its time."""


def run_job(config: JobConfig, *, limits: Limits | None = None) -> JobSummary:
    """Make the clips of a table, or go on with it.

    Raises UsageError, CannotContinueError and StoppedEarlyError with a sentence for the user, KeyboardInterrupt after a
    second signal. What is done stays done in every case, and no process is left behind.
    """
    if config.shard or config.takes > 1 or config.launcher != "local":
        raise UsageError("--shard, --takes and --launcher ray are not in this version: leave them out.")
    stop = StopSignals()
    try:
        with stop, RunLock(config.out) as lock:
            return _Job(config, limits or Limits(), stop, lock).run()
    except Interrupted:
        if stop.requested:
            raise KeyboardInterrupt from None
        raise StoppedEarlyError("Stopped before any row was made; the same command starts again.") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CannotContinueError(
                f"The disk of {config.out} is full. Make room; the same command goes on."
            ) from None
        raise
    finally:
        with suppress(OSError):
            config.out.rmdir()  # only when nothing came of it


class _Job:
    """One run over a folder; the pool's listener."""

    def __init__(self, config: JobConfig, limits: Limits, stop: StopSignals, lock: RunLock) -> None:
        self._config, self._limits, self._stop, self._lock = config, limits, stop, lock
        self._out = config.out.resolve()
        self._journal = self._out / "journal"
        self._started, self._started_at = time.monotonic(), now()
        self._ready: float | None = None  # when the first model was loaded
        self._made, self._made_audio_s = 0, 0.0
        self._killers: SegmentWriter | None = None

    def run(self) -> JobSummary:
        config = self._config
        self._plan = make_plan(config)
        self._before = resume(
            self._out, self._plan.settings, overwrite=config.overwrite, allow_mixed=config.allow_mixed
        )
        self._describe("running")
        self._stop.gentle = True
        self._spool = ReferenceSpool(self._journal / "references")
        with Progress(config.progress, self._plan.num_rows) as self._progress:
            for note in self._plan.notes:
                self.say(note)
            self._progress.keep(self._plan.num_failed, failed=True)
            try:
                for group in self._plan.groups:
                    self._make(group)
            except CannotContinueError:
                with suppress(OSError):  # a full disk has no room for a manifest either
                    self._finish("failed")
                raise
        return self._finish("stopped" if self._stop.requested else "finished")

    def _make(self, group: GroupTotals) -> None:
        """Make the rows of one checkpoint on all devices; start nothing when they are done."""
        self._left = group.num_rows
        rows = self._rows_to_make(group)
        first = next(rows, None)
        if first is None:
            return
        devices = find_devices(self._config)[: self._left + 1]
        self.say(f"{group.model.name}: up to {self._left + 1} rows on {len(devices)} × {devices[0].kind}.")
        start = partial(start_message, self._config, group, self._out)
        pool = Pool(self._journal, self._before.run_number, devices, start, self, self._limits)
        pool.run(Dispatch(chain([first], rows)), lambda: self._left, self._stop)

    def _rows_to_make(self, group: GroupTotals) -> Iterator[Work]:
        """Yield the group's rows that are not done, in input order."""
        before = self._before
        for planned in iter_planned(self._config, self._plan):
            if self._stop.requested:
                return
            if planned.model_group is None or planned.model_group.task != group.model.task:
                continue
            self._left -= 1
            standing = before.index.standing(planned, mixed=before.mixed)
            if standing == "todo":
                before.index.forget_clip(planned.row.id)
                yield Work(planned, row_message(planned, self._config, self._spool))
            else:
                self._progress.keep(failed=standing == "failed")

    # what the pool tells

    def worker_ready(self) -> None:
        if self._ready is None:
            self._ready = time.monotonic()
            self._progress.start_clock()

    def row_ended(self, work: Work, audio_s: float, *, failed: bool) -> None:
        self._made += 1
        self._made_audio_s += audio_s
        self._progress.end(audio_s, failed=failed)
        if work.planned.reference_key is not None:
            self._spool.release(work.planned.reference_key)

    def row_killed_workers(self, work: Work, reason: Reason, message: str) -> None:
        if self._killers is None:
            self._killers = SegmentWriter(segment_path(self._journal, "parent", self._before.run_number, 1))
        self._killers.append([killer_outcome(work.planned, reason, message)])
        self.row_ended(work, 0.0, failed=True)

    def say(self, sentence: str) -> None:
        self._progress.say(sentence)

    def tick(self) -> None:
        self._lock.check()
        self._progress.show()

    # the end

    def _finish(self, state: str) -> JobSummary:
        """Compact the journal into the manifest and sum up."""
        if self._killers is not None:
            self._killers.close()
        self._spool.remove()
        plan, mixed = self._plan, self._before.mixed
        index = JournalIndex(self._out) if self._made else self._before.index
        if state == "finished" or plan.num_rows <= QUICK_MANIFEST_ROWS:
            totals = write_manifests(
                self._out,
                lambda: iter_planned(self._config, plan),
                lambda planned: index.outcome(planned, mixed=mixed),
            )
        else:
            totals = Totals.estimate(index.ok, index.failed, index.audio_s, plan.num_rows, plan.failures)
        ended = time.monotonic()
        made_s = ended - self._ready if self._ready else 0.0
        summary = JobSummary(
            exit_status=_exit_status(state, totals),
            out=self._config.out,
            rows=plan.num_rows,
            ok=totals.ok,
            failed=totals.failed,
            pending=totals.pending,
            made=self._made,
            audio_s=totals.audio_s,
            audio_s_per_s=self._made_audio_s / made_s if made_s else 0.0,
            wall_s=ended - self._started,
            reasons=totals.reasons,
        )
        self._describe(state, summary)
        return summary

    def _describe(self, state: str, summary: JobSummary | None = None) -> None:
        facts: dict[str, Any] = {"state": state, "started": self._started_at, "ended": now() if summary else None}
        facts |= {"runs": self._before.run_number, "mixed": self._before.mixed}
        write_run(self._out, facts | describe_run(self._config, self._plan, summary))


def _exit_status(state: str, totals: Totals) -> ExitStatus:
    if state == "failed":
        return ExitStatus.CANNOT_CONTINUE
    if totals.pending:
        return ExitStatus.STOPPED
    return ExitStatus.SOME_FAILED if totals.failed else ExitStatus.OK
