"""The manifest of a run folder whose runs have ended: after the last shard, or by `tts-batch finish`."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from tts_batch.config import JobConfig
from tts_batch.plan.planner import Plan, iter_planned, make_plan
from tts_batch.plan.shards import Shard
from tts_batch.run.recall import recall_job
from tts_batch.run.resume import resume
from tts_batch.store.index import JournalIndex
from tts_batch.store.lock import FolderInUseError, RunLock, live_locks
from tts_batch.store.manifest import write_manifests
from tts_batch.store.run_json import describe_run, now, read_run, write_run
from tts_batch.store.status import JobSummary, summarise

PATIENCE_S = 30.0


def finish_run(out: Path) -> JobSummary:
    """Mend what a crash left and write the manifest of all that is done; nothing is made.

    Raises UsageError when `out` is not a run folder, or in use, or its table or model says other things than it did.
    """
    config = recall_job(out)
    with RunLock(out):
        return _compact(config, make_plan(config))


def compact_if_last(config: JobConfig, plan: Plan) -> None:
    """Write the manifest when every shard has ended and no row is left. The caller's own lock is released."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if any("-of-" in lock.name for lock in live_locks(config.out)):
            return  # a shard is still at work, and will come here itself
        index = JournalIndex(config.out)
        if index.ok + index.failed < plan.num_planned:
            return
        try:
            with RunLock(config.out):
                _compact(config.model_copy(update={"shard": None}), plan)
                return
        except FolderInUseError:  # another shard ended at this moment, and compacts
            time.sleep(0.5)


def _compact(config: JobConfig, plan: Plan) -> JobSummary:
    started = time.monotonic()
    out = config.out.resolve()
    before = read_run(out)
    resumed = resume(out, plan.settings, Shard())
    find = partial(resumed.index.outcome, mixed=resumed.mixed, with_files=True)
    totals = write_manifests(out, lambda: iter_planned(config, plan), find)
    wall_s = time.monotonic() - started
    summary = summarise(config.out, totals, rows=plan.num_rows, made=0, audio_s_per_s=0.0, wall_s=wall_s)
    facts = {"state": "stopped" if totals.pending else "finished", "started": before["started"], "ended": now()}
    facts |= {"runs": resumed.run_number - 1, "mixed": resumed.mixed, "engines": before.get("engines", [])}
    write_run(out, facts | describe_run(config, plan, summary))
    return summary
