"""Commands on a run folder that exists: the job it was made with, rows to make again, and its manifest."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from tts_batch.config import JobConfig, build_config
from tts_batch.errors import Reason, UsageError
from tts_batch.plan.planner import Plan, iter_planned, make_plan
from tts_batch.plan.shards import Shard
from tts_batch.run.other_rows import OtherRows
from tts_batch.run.resume import resume
from tts_batch.store.index import JournalIndex
from tts_batch.store.journal import Outcome
from tts_batch.store.lock import FolderInUseError
from tts_batch.store.manifest import write_manifests
from tts_batch.store.run_json import add_to_history, describe_run, now, read_existing_run, read_run, write_run
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


def find_lines(index: JournalIndex, ids: Iterable[str], reasons: Collection[Reason], shard: Shard) -> Iterator[Outcome]:
    """Return the last lines of the rows in `ids`, and of those that failed for one of `reasons`, in `shard`.

    Raises UsageError at once for an id that was never made.
    """
    named = {line.id: line for line in _named(index, ids)}
    failed = (line for line in index.failures() if line.reason in reasons and line.id not in named)
    lines = chain(named.values(), failed if reasons else ())
    return (line for line in lines if shard.holds(line.id))


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
    with working_folder(out, tables=config.extend) as folder, storage_of(folder).lock():
        config = config.model_copy(update={"out": folder})
        others = OtherRows(config)
        plan = make_plan(config, watch=others.watch)
        return replace(_compact(config, plan, others), out=out)


def compact_if_last(config: JobConfig, plan: Plan, others: OtherRows) -> None:
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
                _compact(config.model_copy(update={"shard": None}), plan, others)
                return
        except FolderInUseError:  # another shard ended at this moment, and compacts
            time.sleep(0.5)


def _compact(config: JobConfig, plan: Plan, others: OtherRows) -> JobSummary:
    started, started_at = time.monotonic(), now()
    out = config.out.resolve()
    before = read_run(out)
    resumed = resume(out, plan.settings, Shard())
    others.check(resumed.index)
    find = partial(resumed.index.outcome, mixed=resumed.mixed, with_files=True)
    totals = write_manifests(out, lambda: chain(iter_planned(config, plan), others.kept(out, plan.num_rows)), find)
    wall_s, num_kept = time.monotonic() - started, others.num_kept(out)
    summary = summarise(config.out, totals, rows=plan.num_rows + num_kept, made=0, audio_s_per_s=0.0, wall_s=wall_s)
    facts = {"state": "stopped" if totals.pending else "finished", "started": before["started"], "ended": now()}
    facts |= {"runs": resumed.run_number - 1, "mixed": resumed.mixed, "engines": before.get("engines", [])}
    facts |= describe_run(config, plan, summary.to_dict(), num_kept)
    facts["history"] = add_to_history(before, "finish", {**facts, "started": started_at})
    write_run(out, facts)
    return summary
