"""Going on with a run folder: settings compared, leftovers of a crash swept and mended, the journal read."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tts_batch.errors import UsageError
from tts_batch.plan.fingerprint import differing_keys
from tts_batch.plan.shards import Shard
from tts_batch.store import journal
from tts_batch.store.clips import clip_files
from tts_batch.store.index import JournalIndex
from tts_batch.store.journal import Outcome, PartWriter, SegmentWriter
from tts_batch.store.run_json import read_run
from tts_batch.store.schema import FAILURES, MANIFEST
from tts_batch.store.storage import storage_of

_BATCH_ROWS = 1_000
_TABLE = re.compile(r"rows-[0-9a-f]{12}(\.\d+\.tmp|\.parquet)")  # rows from Python
_JOURNAL_FOLDER = re.compile(r"(shard-\d+-of-\d+-)?(w\d+|parent|references)")


@dataclass(frozen=True, slots=True, eq=False)
class Resumed:
    """A run folder that is ready to go on."""

    index: JournalIndex  # what earlier runs have done
    run_number: int  # of this run, from 1
    mixed: bool  # clips of other settings are, or may be, among the kept ones


def resume(
    out: Path, settings: Mapping[str, Any], shard: Shard, *, overwrite: bool = False, allow_mixed: bool = False
) -> Resumed:
    """Open the folder `out`, whose lock for `shard` the caller holds; other shards' folders may be in use.

    Raises UsageError when it was made with other settings and `allow_mixed` is not given, and when a `journal` is
    there that no run wrote.
    """
    storage_of(out).refresh()
    _check_folder(out)
    if overwrite:
        _clear(out)
    before = read_run(out)
    differ = _check_settings(before.get("settings", settings), settings, allow_mixed=allow_mixed)
    for leftover in (*out.glob(f"journal/{shard.name}*/tmp"), *out.glob(f"journal/{shard.name}references")):
        shutil.rmtree(leftover, ignore_errors=True)
    if shard.is_whole:  # shards may be writing theirs now
        for unfinished in (*out.glob(".*.parquet.tmp"), *out.glob(".run.json.*.tmp")):
            unfinished.unlink(missing_ok=True)
    journal.mend(out / "journal", shard.name)
    mixed = differ or bool(before.get("mixed"))
    return Resumed(JournalIndex(out), journal.next_run(out / "journal"), mixed)


def _check_folder(out: Path) -> None:
    """A folder without run.json must be empty, or hold the journal of a run: its folders are swept and filled."""
    if (out / "run.json").exists():
        return
    for path in out.glob("journal/*"):
        if not (_JOURNAL_FOLDER.fullmatch(path.name) or path.name.startswith(".")):
            raise UsageError(f"{out} has a folder `journal` that no run wrote ({path.name}, …): choose another --out.")
    if (out / "journal").exists():
        return
    for name in storage_of(out).visible():
        if not ("run.lock" in name or _TABLE.fullmatch(name)):
            raise UsageError(
                f"{out} holds files that no run wrote ({name}, …) and no run.json: choose a new or an empty "
                f"folder, {out / 'clips'} for example."
            )


def _clear(out: Path) -> None:
    """Remove what earlier runs made, and nothing else."""
    storage = storage_of(out)
    segments = journal.list_segments(out / "journal")
    for segment in segments:
        ids = {outcome.id for outcome in journal.read_outcomes(segment)}
        storage.remove(name for row_id in ids for name in clip_files(row_id))
    storage.remove(storage.quarantined())
    storage.remove(segment.relative_to(out).as_posix() for segment in segments)
    shutil.rmtree(out / "journal", ignore_errors=True)
    storage.remove([MANIFEST, FAILURES, "run.json"])


def _check_settings(old: Mapping[str, Any], new: Mapping[str, Any], *, allow_mixed: bool) -> bool:
    """Return whether the settings that change the sound differ from an earlier run's; refuse unless allowed."""
    differing = [
        key for key in differing_keys(old, new) if not key.startswith("weights_") or (key in old and key in new)
    ]
    if differing and not allow_mixed:
        named = "; ".join(_in_words(key, old.get(key), new.get(key)) for key in differing)
        raise UsageError(
            f"This run folder was made with other settings: {named}. Use those, choose another --out, start over with "
            "--overwrite, or go on with --allow-mixed."
        )
    return bool(differing)


def _in_words(key: str, old: Any, new: Any) -> str:
    if key.startswith("weights_"):
        return f"the model for rows of task {key.removeprefix('weights_')} has other weights"
    if key == "semantics":
        return "it was made by a version of tts-batch whose audio differs"
    return f"{key} was {_value_in_words(old)}, and is {_value_in_words(new)} now"


def _value_in_words(value: Any) -> str:
    if value is None or value == {}:
        return "not given"
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, bool) else "on" if value else "off"


def reopen(lines: Iterator[Outcome], segment: SegmentWriter | PartWriter) -> int:
    """Write that the rows of these lines are pending again, in this run or a later one; return how many they are."""
    count = 0
    while batch := [line.reopened() for line in islice(lines, _BATCH_ROWS)]:
        segment.append(batch)
        count += len(batch)
    return count
