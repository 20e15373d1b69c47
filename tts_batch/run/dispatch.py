"""Which row is assigned where, between the plan and its end. Pure bookkeeping: no processes, no clocks, no files.

A poison row, which kills workers, is found: what an engine had at two deaths runs alone, after everything else, and the
row that is alone at two deaths fails. The others only run again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from tts_batch.ipc.messages import RowTask

MESSAGE_ROWS = 64  # sent together, and to a worker whose engine is not yet open
DEATHS_BEFORE_ALONE = 2
DEATHS_ALONE = 2  # one may have another cause: a machine short of memory, an operator


@dataclass(slots=True, eq=False)
class DispatchedRow:
    """A row to synthesise, and how many workers died while their engine had it."""

    task: RowTask
    deaths: int = 0
    deaths_alone: int = 0  # of them, while it had nothing else

    @property
    def id(self) -> str:
        return self.task.id


@dataclass(slots=True, eq=False)
class AssignedRows:
    """What one worker has: rows that wait for its engine, oldest first, and rows that the engine has begun."""

    queued: dict[str, DispatchedRow] = field(default_factory=dict)
    in_flight: dict[str, DispatchedRow] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.queued) + len(self.in_flight)

    def begin(self, row_id: str) -> None:
        """The engine has begun the row. An id that does not wait here is ignored."""
        row = self.queued.pop(row_id, None)
        if row is not None:
            self.in_flight[row_id] = row

    def end(self, row_id: str) -> DispatchedRow | None:
        """The row ended; None when this worker did not have it."""
        return self.in_flight.pop(row_id, None) or self.queued.pop(row_id, None)

    @property
    def is_suspect(self) -> bool:
        """Whether the one row that it has is under suspicion: such a row comes alone, and nothing comes to it."""
        if len(self) != 1:
            return False
        (row,) = (*self.queued.values(), *self.in_flight.values())
        return row.deaths >= DEATHS_BEFORE_ALONE


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

    def __init__(self, source: Iterator[DispatchedRow]) -> None:
        self._source = source
        self._ahead: deque[DispatchedRow] = deque()
        self._suspects: deque[DispatchedRow] = deque()

    def take(self, assigned: AssignedRows) -> DispatchedRow | None:
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

    def reclaim(self, assigned: AssignedRows) -> DispatchedRow | None:
        """Take back the rows of a dead worker; return the poison row that killed it, if that is clear."""
        in_flight = list(assigned.in_flight.values())
        waiting = list(assigned.queued.values())
        assigned.in_flight.clear()
        assigned.queued.clear()
        for row in in_flight:
            row.deaths += 1
        poison = None
        if len(in_flight) == 1:
            in_flight[0].deaths_alone += 1
            if in_flight[0].deaths_alone >= DEATHS_ALONE:
                poison = in_flight.pop()
        for row in reversed(in_flight + waiting):
            if row.deaths >= DEATHS_BEFORE_ALONE:
                self._suspects.appendleft(row)
            else:
                self._ahead.appendleft(row)
        return poison

    def drop(self) -> None:
        """Assign nothing more: the run stops, and what is left stays pending."""
        self._source = iter(())
        self._ahead.clear()
        self._suspects.clear()

    def _choose(self, assigned: AssignedRows) -> DispatchedRow | None:
        if assigned.is_suspect:
            return None
        self._look_ahead()
        if self._ahead:
            return self._ahead.popleft()
        if self._suspects and not len(assigned):
            return self._suspects.popleft()
        return None

    def _look_ahead(self) -> None:
        if not self._ahead and (row := next(self._source, None)) is not None:
            self._ahead.append(row)
