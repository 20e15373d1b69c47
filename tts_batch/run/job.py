"""The main path, parent's side: lock → plan → resume → workers → manifest → summary. It never imports torch."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from typing import Any

from tts_batch.config import JobConfig
from tts_batch.engine.request import EngineConfig
from tts_batch.errors import CannotContinueError, ExitStatus, Reason, UsageError
from tts_batch.plan.planner import GroupTotals, iter_planned, make_plan
from tts_batch.run import journal
from tts_batch.run.channel import Message
from tts_batch.run.clips import remove_clip
from tts_batch.run.devices import Device, find_devices
from tts_batch.run.dispatch import Dispatch, Work
from tts_batch.run.lock import RunLock
from tts_batch.run.manifest import write_manifests
from tts_batch.run.pool import Limits, Pool
from tts_batch.run.progress import Progress
from tts_batch.run.references import ReferenceSpool
from tts_batch.run.requests import row_message
from tts_batch.run.resume import JournalIndex, check_settings, input_digest
from tts_batch.run.signals import InterruptedTwice, StopSignals
from tts_batch.run.summary import JobSummary, now, read_run, read_status, versions, write_run

__all__ = ["JobSummary", "Limits", "read_status", "run_job"]

QUICK_MANIFEST_ROWS = 100_000
"""After a stop the manifest is written for so many rows at most: a scheduler kills what takes its time."""


def run_job(config: JobConfig, *, limits: Limits | None = None) -> JobSummary:
    """Make the clips of a table, or go on with it.

    Raises UsageError and CannotContinueError with a sentence for the user, KeyboardInterrupt after a second signal.
    What is done stays done in every case, and no process is left behind.
    """
    if config.shard is not None:
        raise UsageError("--shard is not in this version: run the whole table with one command.")
    try:
        with StopSignals() as stop, RunLock(config.out) as lock:
            return _Job(config, limits or Limits(), stop, lock).run()
    except InterruptedTwice:
        raise KeyboardInterrupt from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CannotContinueError(
                f"The disk of {config.out} is full. Make room; the same command goes on."
            ) from error
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
        self._started, self._began = time.monotonic(), now()
        self._ready_since: float | None = None
        self._made, self._made_audio_s = 0, 0.0

    def run(self) -> JobSummary:
        self._plan = make_plan(self._config)
        self._resume()
        self._spool = ReferenceSpool(self._journal / "references")
        with Progress(self._config.progress, self._plan.num_rows) as self._progress:
            for note in self._plan.notes:
                self.say(note)
            self._progress.keep(self._plan.num_failed, failed=True)
            try:
                for group in self._plan.groups:
                    self._make(group)
            except CannotContinueError:
                with suppress(OSError):
                    self._finish("failed")
                raise
        return self._finish("stopped" if self._stop.requested else "finished")

    def _resume(self) -> None:
        """Make the folder ready to go on: settings compared, torn files mended, the journal read."""
        before = read_run(self._out)
        if self._config.overwrite:
            self._clear(before)
            before = {}
        old = before.get("settings", self._plan.settings)
        differ = check_settings(old, self._plan.settings, allow_mixed=self._config.allow_mixed)
        self._mixed = differ or bool(before.get("mixed"))
        for folder in (*self._journal.glob("*/tmp"), self._journal / "references"):
            shutil.rmtree(folder, ignore_errors=True)
        journal.mend(self._journal)
        self._run_number = journal.next_run(self._journal)
        self._parent_segment: journal.SegmentWriter | None = None
        self._index = JournalIndex(self._out)
        self._write_run("running")

    def _clear(self, before: dict[str, Any]) -> None:
        """Remove what earlier runs made, and nothing else."""
        for segment in journal.list_segments(self._journal):
            for outcome in journal.read_outcomes(segment):
                remove_clip(self._out, outcome.id)
        shutil.rmtree(self._journal, ignore_errors=True)
        for name in ("manifest.parquet", "failures.parquet", "run.json"):
            (self._out / name).unlink(missing_ok=True)

    def _make(self, group: GroupTotals) -> None:
        """Make the rows of one checkpoint on all devices; start nothing when they are done."""
        self._left = group.num_rows
        rows = self._rows_to_make(group)
        first = next(rows, None)
        if first is None:
            return
        devices = find_devices(self._config)[: self._left + 1]
        self.say(f"{group.model.name}: up to {self._left + 1} rows on {len(devices)} × {devices[0].kind}.")
        pool = Pool(
            self._journal, self._run_number, devices, lambda device: self._start(group, device), self, self._limits
        )
        pool.run(Dispatch(chain([first], rows)), lambda: self._left, self._stop)

    def _rows_to_make(self, group: GroupTotals) -> Iterator[Work]:
        """Yield the group's rows that are not done, in input order."""
        for planned in iter_planned(self._config, self._plan):
            if self._stop.requested:
                return
            if planned.model_group is None or planned.model_group.task != group.model.task:
                continue
            self._left -= 1
            standing = self._index.standing(planned, mixed=self._mixed)
            if standing == "todo":
                self._index.forget_clip(planned.row.id)
                yield Work(planned, row_message(planned, self._config, self._spool))
            else:
                self._progress.keep(failed=standing == "failed")

    def _start(self, group: GroupTotals, device: Device) -> Message:
        config, checkpoint = self._config, group.model.checkpoint
        engine_config = EngineConfig(
            model=str(checkpoint.path),
            model_revision=checkpoint.revision,
            device=device.kind,
            dtype=config.dtype,
            runner=config.runner,
            profile=config.profile,
            placement=config.placement,
            cuda_graph=config.cuda_graph,
            eager=config.eager,
            max_num_seqs=config.max_num_seqs,
        )
        return {
            "out": str(self._out),
            "engine": config.engine,
            "engine_config": asdict(engine_config),
            "save_codes": config.save_codes,
            "constants": self._constants(group),
        }

    def _constants(self, group: GroupTotals) -> dict[str, Any]:
        checkpoint = group.model.checkpoint
        return {"model": checkpoint.name, "model_revision": checkpoint.revision, "engine": self._config.engine}

    # what the pool tells

    def worker_ready(self, facts: Message) -> None:
        if self._ready_since is None:
            self._ready_since = time.monotonic()
            self._progress.start_clock()

    def row_ended(self, work: Work, audio_s: float, *, failed: bool) -> None:
        self._made += 1
        self._made_audio_s += audio_s
        self._progress.end(audio_s, failed=failed)
        if work.planned.reference_key is not None:
            self._spool.release(work.planned.reference_key)

    def row_killed_workers(self, work: Work, reason: Reason, message: str) -> None:
        if self._parent_segment is None:
            path = journal.segment_path(self._journal, "parent", self._run_number, 1)
            self._parent_segment = journal.SegmentWriter(path)
        planned = work.planned
        outcome = journal.Outcome(
            id=work.id,
            fingerprint=planned.fingerprint,
            input_digest=input_digest(planned),
            status="failed",
            reason=reason,
            message=message,
            max_frames=planned.max_frames,
            attempts=1,
            seed=planned.seed,
            attempt_seeds=(planned.seed,),
        )
        self._parent_segment.append([outcome])
        self.row_ended(work, 0.0, failed=True)

    def say(self, sentence: str) -> None:
        self._progress.say(sentence)

    def tick(self) -> None:
        self._lock.check()
        self._progress.show()

    # the end

    def _finish(self, state: str) -> JobSummary:
        """Compact the journal into the manifest and sum up."""
        shutil.rmtree(self._journal / "references", ignore_errors=True)
        index = JournalIndex(self._out)
        planned_failures = dict(self._plan.failures)
        if state != "finished" and self._plan.num_rows > QUICK_MANIFEST_ROWS:
            failed = index.failed + self._plan.num_failed
            pending = max(self._plan.num_rows - index.ok - failed, 0)
            totals = {"ok": index.ok, "failed": failed, "pending": pending, "audio_s": index.audio_s}
            totals["reasons"] = planned_failures
        else:
            totals = write_manifests(
                self._out,
                lambda: iter_planned(self._config, self._plan),
                lambda planned: index.outcome(planned, mixed=self._mixed),
            )
        summary = self._summarise(totals, state)
        self._write_run(state, summary)
        return summary

    def _summarise(self, totals: dict[str, Any], state: str) -> JobSummary:
        ended = time.monotonic()
        if state == "failed":
            status = ExitStatus.CANNOT_CONTINUE
        elif totals["pending"]:
            status = ExitStatus.STOPPED
        else:
            status = ExitStatus.SOME_FAILED if totals["failed"] else ExitStatus.OK
        made_s = ended - (self._ready_since or ended)
        return JobSummary(
            exit_status=status,
            out=self._config.out,
            rows=self._plan.num_rows,
            made=self._made,
            audio_s_per_s=self._made_audio_s / made_s if made_s > 0 else 0.0,
            wall_s=ended - self._started,
            **totals,
        )

    def _write_run(self, state: str, summary: JobSummary | None = None) -> None:
        plan = self._plan
        facts = {
            "state": state,
            "started": self._began,
            "ended": now() if summary else None,
            "runs": self._run_number,
            "fingerprint": plan.fingerprint,
            "mixed": self._mixed,
            "settings": plan.settings,
            "config": self._config.model_dump(mode="json"),
            "models": [self._constants(group) | {"rows": group.num_rows} for group in plan.groups],
            "versions": versions(),
            "counts": {"rows": plan.num_rows, "failed_in_plan": plan.num_failed},
        }
        if summary is not None:
            facts["summary"] = summary.to_dict()
        write_run(self._out, facts)
