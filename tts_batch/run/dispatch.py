"""Which row is assigned where, between the plan and its end. Pure bookkeeping: no processes, no clocks, no files.

A poison row, which kills workers, is found: what an engine had at two deaths runs alone, after everything else, and the
row that is alone at two deaths fails. The others only run again.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from tts_batch.ipc.messages import RowRequest

MESSAGE_ROWS = 64  # sent together, and to a worker whose engine is not yet open
DEATHS_BEFORE_ALONE = 2
DEATHS_ALONE = 2  # one may have another cause: a machine short of memory, an operator


@dataclass(slots=True, eq=False)
class AssignedRows:
    """What one worker has: rows that wait for its engine, oldest first, and rows that the engine has begun."""

    queued: dict[str, RowRequest] = field(default_factory=dict)
    in_flight: dict[str, RowRequest] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.queued) + len(self.in_flight)

    def begin(self, row_id: str) -> None:
        """The engine has begun the row. An id that does not wait here is ignored."""
        row = self.queued.pop(row_id, None)
        if row is not None:
            self.in_flight[row_id] = row

    def end(self, row_id: str) -> RowRequest | None:
        """The row ended; None when this worker did not have it."""
        return self.in_flight.pop(row_id, None) or self.queued.pop(row_id, None)


def find_room(mine: AssignedRows, all_assigned: Sequence[AssignedRows], left: int, most: int) -> int:
    """Return how many of `left` rows to send to the worker that has `mine`; `all_assigned` are those of all workers.

    Ahead of its engine a worker has at most `most` rows, and beside others half its share of those left: so one that
    is half as fast delays none of the others. With what its engine has begun it has no more than its share of all: so
    the engine that opens first does not take the rest. Few rows are sent only where there are few: many in one message
    cost what one costs.
    """
    workers = len(all_assigned)
    ahead = max(1, min(most, left // (2 * workers) if workers > 1 else left))
    share = max(1, math.ceil((left + sum(map(len, all_assigned))) / workers))
    room = ahead - len(mine.queued)
    return min(room, share - len(mine)) if room >= min(MESSAGE_ROWS, ahead // 2) else 0


class Dispatch:
    """Assigns rows: first those that lost their worker, then the source's, at last the suspects one by one."""

    def __init__(self, source: Iterator[RowRequest]) -> None:
        self._source = source
        self._ahead: deque[RowRequest] = deque()
        self._suspects: deque[RowRequest] = deque()
        self.deaths: Counter[str] = Counter()  # row id → workers that died while their engine had it …
        self.deaths_alone: Counter[str] = Counter()  # … and nothing else

    def take(self, assigned: AssignedRows) -> RowRequest | None:
        """Assign the next row to a worker and return it; None when there is none for it now."""
        row = self._choose(assigned)
        if row is not None:
            assigned.queued[row.id] = row
        return row

    @property
    def exhausted(self) -> bool:
        """Whether every row is assigned or has ended."""
        self._look_ahead()
        return not self._ahead and not self._suspects

    @property
    def waiting(self) -> int:
        """How many rows were read, or came back, and are not assigned."""
        return len(self._ahead) + len(self._suspects)

    def read_ahead(self, count: int) -> bool:
        """Read up to `count` rows to be assigned later; False when the source has no more."""
        self._ahead.extend(rows := [*islice(self._source, count)])
        return len(rows) == count

    def reclaim(self, assigned: AssignedRows, *, blame: bool = True) -> RowRequest | None:
        """Take back the rows of a dead worker; return the poison row that killed it, if that is clear.

        Without `blame` it was no row: its machine was lost.
        """
        in_flight = list(assigned.in_flight.values())
        waiting = list(assigned.queued.values())
        assigned.in_flight.clear()
        assigned.queued.clear()
        self.deaths.update(row.id for row in in_flight if blame)
        poison = None
        if len(in_flight) == 1 and blame:
            self.deaths_alone[in_flight[0].id] += 1
            if self.deaths_alone[in_flight[0].id] >= DEATHS_ALONE:
                poison = in_flight.pop()
        for row in reversed(in_flight + waiting):
            if self.deaths[row.id] >= DEATHS_BEFORE_ALONE:
                self._suspects.appendleft(row)
            else:
                self._ahead.appendleft(row)
        return poison

    def drop(self) -> None:
        """Assign nothing more: the run stops, and what is left stays pending."""
        self._source = iter(())
        self._ahead.clear()
        self._suspects.clear()

    def _choose(self, assigned: AssignedRows) -> RowRequest | None:
        if self._has_suspect(assigned):
            return None
        self._look_ahead()
        if self._ahead:
            return self._ahead.popleft()
        if self._suspects and not len(assigned):
            return self._suspects.popleft()
        return None

    def _has_suspect(self, assigned: AssignedRows) -> bool:
        """Whether the one row there is under suspicion: such a row comes alone, and nothing comes to it."""
        if len(assigned) != 1 or not self.deaths:
            return False
        (row_id,) = (*assigned.queued, *assigned.in_flight)
        return self.deaths[row_id] >= DEATHS_BEFORE_ALONE

    def _look_ahead(self) -> None:
        if not self._ahead and (row := next(self._source, None)) is not None:
            self._ahead.append(row)
