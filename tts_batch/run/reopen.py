"""Putting rows that ended back among the pending ones: --redo, and `tts-batch retry`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain, islice

from tts_batch.errors import Reason, UsageError
from tts_batch.plan.shards import Shard
from tts_batch.store.index import JournalIndex
from tts_batch.store.journal import Outcome, SegmentWriter

_BATCH_ROWS = 1_000


def find_lines(index: JournalIndex, ids: Iterable[str], reasons: Collection[Reason], shard: Shard) -> Iterator[Outcome]:
    """Return the last lines of the rows in `ids`, and of those that failed for one of `reasons`, in `shard`.

    Raises UsageError at once for an id that was never made.
    """
    named = {line.id: line for line in _named(index, ids)}
    failed = (line for line in index.failures() if line.reason in reasons and line.id not in named)
    lines = chain(named.values(), failed if reasons else ())
    return (line for line in lines if shard.holds(line.id))


def reopen(lines: Iterator[Outcome], segment: SegmentWriter) -> int:
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
