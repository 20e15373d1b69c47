"""Checking a run folder against its manifest: every clip is decoded, every file is accounted for."""

from __future__ import annotations

import io
from array import array
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
import soundfile

from tts_batch.store.clip_sink import key_of
from tts_batch.store.clips import CONTAINERS, clip_path, digest_of
from tts_batch.store.index import JournalIndex
from tts_batch.store.run_json import read_ended_run
from tts_batch.store.schema import MANIFEST
from tts_batch.store.storage import storage_of

_COLUMNS = ["id", "status", "audio", "codes", "duration_s", "sample_rate", "num_frames"]
_BATCH_ROWS = 512
_THREADS = 8  # decoding and waiting for a disk both release the GIL
_LOSSY_SLACK_S = 0.2  # lossy encoders pad
_LOSSLESS = {container.suffix for container in CONTAINERS.values() if container.lossless}

Kind = Literal["missing", "unreadable", "changed", "wrong length", "orphan", "pending"]
_DAMAGED: tuple[Kind, ...] = ("unreadable", "changed", "wrong length")


@dataclass(frozen=True, slots=True)
class Problem:
    """A difference between the run folder and its manifest."""

    kind: Kind
    path: str  # relative to the run folder
    row_id: str | None
    message: str


def verify_run(out: Path) -> Iterator[Problem]:
    """Yield the problems of the run folder `out`, row by row, then the files that belong to no row. Writes nothing.

    Raises UsageError when `out` is not a run folder with a manifest, or a run works in it.
    """
    read_ended_run(out)
    index = JournalIndex(out)
    known = array("Q")
    with ThreadPoolExecutor(_THREADS) as threads:
        for batch in pq.ParquetFile(out / MANIFEST).iter_batches(_BATCH_ROWS, columns=_COLUMNS):
            rows = [row for row in batch.to_pylist() if row["status"] != "failed"]
            known.extend(key_of(row[name]) for row in rows for name in ("audio", "codes") if row[name])
            for problems in threads.map(lambda row: list(_check_row(out, row, index)), rows):
                yield from problems
    yield from _orphans(out, np.unique(np.frombuffer(known, np.uint64)) if known else np.zeros(0, np.uint64))


def remove_damaged(out: Path, problem: Problem) -> None:
    """Remove the file of a problem if it is not what was written, so that the run makes it again."""
    if problem.kind not in _DAMAGED or problem.row_id is None:
        return
    if problem.path == clip_path(problem.row_id, Path(problem.path).suffix):  # the manifest may name any path
        storage_of(out).remove([problem.path])


def _check_row(out: Path, row: Mapping[str, Any], index: JournalIndex) -> Iterator[Problem]:
    row_id, path = row["id"], row["audio"]
    if row["status"] == "pending":
        yield Problem("pending", "", row_id, "it has not been made yet")
        return
    try:
        clip = storage_of(out).read(path)
    except OSError as error:
        yield Problem("missing", path, row_id, error.strerror or "it is not there")
        return
    line = index.last_line(row_id)
    if line is not None and line.audio_digest not in (None, digest_of(clip)):
        yield Problem("changed", path, row_id, "its bytes are not those that were written")
    try:
        audio, sample_rate = soundfile.read(io.BytesIO(clip), dtype="float32")
    except soundfile.LibsndfileError as error:
        yield Problem("unreadable", path, row_id, str(error))
        return
    slack_s = 0.0 if Path(path).suffix in _LOSSLESS else _LOSSY_SLACK_S
    wanted = round(row["duration_s"] * row["sample_rate"])
    if sample_rate != row["sample_rate"] or abs(len(audio) - wanted) > slack_s * sample_rate:
        found = f"{len(audio)} samples at {sample_rate} Hz"
        yield Problem("wrong length", path, row_id, f"{found}, not {wanted} at {row['sample_rate']} Hz")
    if row["codes"]:
        yield from _check_codes(out, row, line.codes_digest if line else None)


def _check_codes(out: Path, row: Mapping[str, Any], digest: str | None) -> Iterator[Problem]:
    row_id, path = row["id"], row["codes"]
    try:
        codes = storage_of(out).read(path)
    except OSError as error:
        yield Problem("missing", path, row_id, error.strerror or "it is not there")
        return
    if digest not in (None, digest_of(codes)):
        yield Problem("changed", path, row_id, "its bytes are not those that were written")
    try:
        shape = np.load(io.BytesIO(codes), allow_pickle=False).shape
    except (EOFError, ValueError) as error:
        yield Problem("unreadable", path, row_id, str(error))
        return
    if shape[:1] != (row["num_frames"],):
        yield Problem("wrong length", path, row_id, f"it has the shape {shape}, not {row['num_frames']} frames")


def _orphans(out: Path, known: np.ndarray[Any, np.dtype[np.uint64]]) -> Iterator[Problem]:
    for path in storage_of(out).clips():
        key = np.uint64(key_of(path))
        place = int(np.searchsorted(known, key))
        if place == len(known) or known[place] != key:
            yield Problem("orphan", path, None, "no row of the manifest names it")
