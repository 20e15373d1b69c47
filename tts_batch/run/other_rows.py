"""Rows with clips in a run folder that its table does not have: refused, kept in the manifest, or removed."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from tts_batch.config import JobConfig
from tts_batch.errors import UsageError
from tts_batch.plan.rows import PlannedRow
from tts_batch.plan.shards import Shard
from tts_batch.records import RefAudio, Row
from tts_batch.run.resume import reopen
from tts_batch.store.clips import clip_files
from tts_batch.store.index import JournalIndex, hash_id
from tts_batch.store.journal import Outcome, PartWriter, SegmentWriter
from tts_batch.store.run_json import read_run
from tts_batch.store.schema import MANIFEST, SCHEMA
from tts_batch.store.storage import storage_of

_BATCH_ROWS = 2_000
_SAME_NAME = (
    "id", "source", "text", "task", "language", "speaker", "instruct", "ref_text", "x_vector_only", "non_streaming",
)  # fmt: skip


class OtherRows:
    """The ids of a table's rows, in 8 bytes each, and what to do with rows of other ids that have clips."""

    def __init__(self, config: JobConfig) -> None:
        self._config = config
        self._ids = array("Q")

    def watch(self, row: Row) -> None:
        """Take note of a row of the table."""
        self._ids.append(hash_id(row.id))

    def check(self, index: JournalIndex) -> None:
        """Raise UsageError when there are other rows with clips, and neither --extend nor --prune."""
        others = index.clips_beside(self._ids)
        first = next(others, None)
        if first is None or self._config.prune:
            return
        if not self._config.extend:
            raise UsageError(self._refusal(index.out, first, 1 + sum(1 for _ in others)))
        self._check_manifest(index)

    def prune(self, index: JournalIndex, shard: Shard, segment: Callable[[], SegmentWriter | PartWriter]) -> int:
        """Remove the clips of other rows with --prune, and return how many they were."""
        lines = list(index.clips_beside(self._ids)) if self._config.prune else []
        mine = [line for line in lines if shard.holds(line.id)]
        for line in mine:
            storage_of(index.out).remove(clip_files(line.id))
        return reopen(iter(mine), segment()) if mine else 0

    def kept(self, out: Path, first_index: int) -> Iterator[PlannedRow]:
        """Yield the other rows as the manifest in `out` has them, with --extend; the first gets `first_index`."""
        if not self._config.extend or not (out / MANIFEST).exists():
            return
        for number, row in enumerate(self._rows_beside(out)):
            yield _planned(row, first_index + number)

    def num_kept(self, out: Path) -> int:
        """Return how many rows `kept` yields."""
        return sum(1 for _ in self.kept(out, 0))

    def _rows_beside(self, out: Path) -> Iterator[dict[str, Any]]:
        with pq.ParquetFile(out / MANIFEST) as manifest:
            for batch in manifest.iter_batches(_BATCH_ROWS):
                rows = [row for row in batch.to_pylist() if row["fingerprint"] and row["status"] != "pending"]
                hashes = np.array([hash_id(row["id"]) for row in rows], np.uint64)
                known = np.isin(hashes, np.frombuffer(self._ids, np.uint64))
                yield from (row for row, is_known in zip(rows, known, strict=True) if not is_known)

    def _check_manifest(self, index: JournalIndex) -> None:
        """What is kept is known by its manifest alone: the table that it was made from may be gone."""
        out = index.out
        named = {row["id"] for row in self._rows_beside(out)} if (out / MANIFEST).exists() else set()
        lost = next((line.id for line in index.clips_beside(self._ids) if line.id not in named), None)
        if lost is not None:
            raise UsageError(
                f"--extend finds rows in {out} by its manifest, and {lost!r} is not in it yet: "
                f"`tts-batch finish {out}` writes it."
            )

    def _refusal(self, out: Path, example: Outcome, count: int) -> str:
        before = read_run(out).get("config", {})
        smaller = [
            f"--{name} was {before.get(name) or 'not given'} and is {now}"
            for name, now in (("takes", self._config.takes), ("limit", self._config.limit))
            if now is not None and before and (before.get(name) or float("inf")) > now
        ]
        why = f" ({', '.join(smaller)})" if smaller else ""
        rows = "1 row" if count == 1 else f"{count} rows"
        return (
            f"{rows} with a clip in {out}, such as {example.id!r}, {'is' if count == 1 else 'are'} not in this table"
            f"{why}. For another table choose another --out; --extend goes on and keeps them, --prune goes on and "
            "removes their clips."
        )


def _planned(row: dict[str, Any], row_index: int) -> PlannedRow:
    """Return a manifest row as its plan was, as far as a manifest needs it."""
    return PlannedRow(
        Row(
            row_index=row_index,
            ref_audio=RefAudio(label=row["ref_audio"]) if row["ref_audio"] is not None else None,
            extras={name: value for name, value in row.items() if name not in SCHEMA.names},
            **{name: row[name] for name in _SAME_NAME},
        ),
        seed=row["seed"],
        fingerprint=row["fingerprint"],
    )
