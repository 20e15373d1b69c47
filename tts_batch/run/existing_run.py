"""Commands on a run folder that exists: the job it was made with, rows to make again, and its manifest."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from tts_batch.config import JobConfig, build_config
from tts_batch.errors import Reason, UsageError
from tts_batch.plan.planner import Plan, iter_planned, make_plan
from tts_batch.plan.shards import Shard
from tts_batch.run.resume import resume
from tts_batch.store.index import JournalIndex
from tts_batch.store.journal import Outcome, PartWriter, SegmentWriter
from tts_batch.store.lock import FolderInUseError
from tts_batch.store.manifest import write_manifests
from tts_batch.store.run_json import describe_run, now, read_existing_run, read_run, write_run
from tts_batch.store.status import JobSummary, summarise
from tts_batch.store.storage import storage_of, working_folder

LAST_SHARD_S = 30.0  # for another shard that ends at this moment
_ONCE = ("overwrite", "redo", "shard", "skip_existing")
"""Options of one run that the next does not repeat."""


def load_job(out: Path, **changes: Any) -> JobConfig:
    """Return the job that last ran in `out`, with `changes`; its paths are found from any working folder.

    Raises UsageError when `out` is not a run folder.
    """
    with working_folder(out, journal=False) as folder:
        run = read_existing_run(folder)
    options = {name: value for name, value in run["config"].items() if name not in _ONCE}
    there = Path(run["working_folder"])
    options |= {"out": out, "data": [_from(there, path) for path in options["data"]]}
    if options.get("audio_root"):
        options["audio_root"] = _from(there, options["audio_root"])
    if options.get("model") and (there / options["model"]).is_dir():
        options["model"] = _from(there, options["model"])
    return build_config(options | changes)


def _from(folder: Path, path: str) -> str:
    return path if "://" in path else str(folder / path)


_BATCH_ROWS = 1_000


def find_lines(index: JournalIndex, ids: Iterable[str], reasons: Collection[Reason], shard: Shard) -> Iterator[Outcome]:
    """Return the last lines of the rows in `ids`, and of those that failed for one of `reasons`, in `shard`.

    Raises UsageError at once for an id that was never made.
    """
    named = {line.id: line for line in _named(index, ids)}
    failed = (line for line in index.failures() if line.reason in reasons and line.id not in named)
    lines = chain(named.values(), failed if reasons else ())
    return (line for line in lines if shard.holds(line.id))


def reopen(lines: Iterator[Outcome], segment: SegmentWriter | PartWriter) -> int:
    """Write that the rows of these lines are pending again, in this run or a later one; return how many they are."""
    count = 0
    while batch := [line.reopened() for line in islice(lines, _BATCH_ROWS)]:
        segment.append(batch)
        count += len(batch)
    return count


def _named(index: JournalIndex, ids: Iterable[str]) -> Iterator[Outcome]:
    for row_id in ids:
        line = index.last_line(row_id)
        if line is None:
            raise UsageError(f"No row {row_id!r} was made in {index.out}, so that it cannot be made again.")
        if line.status != "pending":
            yield line


def finish_run(out: Path) -> JobSummary:
    """Mend what a crash left and write the manifest of all that is done; nothing is made.

    Raises UsageError when `out` is not a run folder, or in use, or its table or model says other things than it did.
    """
    config = load_job(out)
    with working_folder(out) as folder, storage_of(folder).lock():
        summary = _compact(config.model_copy(update={"out": folder}), make_plan(config))
        return replace(summary, out=out)


def compact_if_last(config: JobConfig, plan: Plan) -> None:
    """Write the manifest when every shard has ended and no row is left. The caller's own lock is released."""
    deadline = time.monotonic() + LAST_SHARD_S
    storage = storage_of(config.out)
    while time.monotonic() < deadline:
        if any("-of-" in lock for lock in storage.live_locks()):
            return  # a shard is still at work, and will come here itself
        storage.refresh()
        index = JournalIndex(config.out)
        if index.ok + index.failed < plan.num_planned:
            return
        try:
            with storage.lock():
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
    write_run(out, facts | describe_run(config, plan, summary.to_dict()))
    return summary
