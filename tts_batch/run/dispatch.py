"""Which row is where between the plan and its end. Pure bookkeeping: no processes, no clocks, no files.

A row that kills workers is found: what was in an engine's hands at two deaths runs alone, after everything else, and
the row that is alone at two deaths fails. Its neighbours only run again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from tts_batch.ipc.channel import Message

if TYPE_CHECKING:
    from tts_batch.plan.rows import PlannedRow

MESSAGE_ROWS = 64  # sent together, and to a worker whose engine is not yet open
DEATHS_BEFORE_ALONE = 2
DEATHS_ALONE = 2  # one may be anybody's: a machine short of memory, an operator


@dataclass(slots=True, eq=False)
class Work:
    """A row to make, the message that asks a worker for it, and how many workers died with it in hand."""

    planned: PlannedRow
    message: Message
    deaths: int = 0
    deaths_alone: int = 0  # of them, with nothing else in hand

    @property
    def id(self) -> str:
        return self.planned.row.id

    @property
    def seeds(self) -> list[int]:
        """Of the attempts so far and the one that a worker begins with."""
        return [*self.message["tried"], self.message["pieces"][0]["seeds"][0]]


@dataclass(slots=True, eq=False)
class Holding:
    """What one worker has: rows sent to it, oldest first, and among them those that its engine has pulled."""

    queued: dict[str, Work] = field(default_factory=dict)
    in_flight: dict[str, Work] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.queued) + len(self.in_flight)

    def pull(self) -> None:
        """The engine took the oldest queued row."""
        row_id = next(iter(self.queued))
        self.in_flight[row_id] = self.queued.pop(row_id)

    def end(self, row_id: str) -> Work | None:
        """The row ended; None when this worker did not hold it."""
        return self.in_flight.pop(row_id, None) or self.queued.pop(row_id, None)

    @property
    def is_suspect(self) -> bool:
        """Whether the one row that it has is under suspicion: such a row comes alone, and nothing comes to it."""
        if len(self) != 1:
            return False
        (work,) = (*self.queued.values(), *self.in_flight.values())
        return work.deaths >= DEATHS_BEFORE_ALONE


def find_room(mine: Holding, holdings: Sequence[Holding], left: int, most: int) -> int:
    """Return how many of `left` rows to send to the worker that has `mine`; `holdings` are those of all workers.

    Ahead of its engine a worker has at most `most` rows, and beside others half its share of those left: so one that
    is half as fast holds nobody up. With what its engine has pulled it has no more than its share of all: so the engine
    that opens first does not take the rest. Few rows are sent only where there are few: many in one message cost what
    one costs.
    """
    workers = len(holdings)
    ahead = max(1, min(most, left // (2 * workers) if workers > 1 else left))
    share = max(1, math.ceil((left + sum(map(len, holdings))) / workers))
    room = ahead - len(mine.queued)
    return min(room, share - len(mine)) if room >= min(MESSAGE_ROWS, ahead // 2) else 0


class Dispatch:
    """Hands rows out: first those that lost their worker, then the source's, at last the suspects one by one."""

    def __init__(self, source: Iterator[Work]) -> None:
        self._source = source
        self._ahead: deque[Work] = deque()
        self._suspects: deque[Work] = deque()

    def take(self, holding: Holding) -> Work | None:
        """Return the next row for a worker and note that it holds it; None when there is none for it now."""
        work = self._choose(holding)
        if work is not None:
            holding.queued[work.id] = work
        return work

    @property
    def exhausted(self) -> bool:
        """Whether every row is handed out or ended."""
        self._look_ahead()
        return not self._ahead and not self._suspects

    @property
    def waiting(self) -> int:
        """How many rows were read, or came back, and are not handed out."""
        return len(self._ahead) + len(self._suspects)

    def read_ahead(self, count: int) -> bool:
        """Read up to `count` rows that are to be handed out later; False when the source has no more."""
        self._ahead.extend(rows := [*islice(self._source, count)])
        return len(rows) == count

    def bury(self, holding: Holding) -> Work | None:
        """Take back what a dead worker held; return the row that is guilty of its death, if that is clear."""
        in_hand = list(holding.in_flight.values())
        waiting = list(holding.queued.values())
        holding.in_flight.clear()
        holding.queued.clear()
        for work in in_hand:
            work.deaths += 1
        guilty = None
        if len(in_hand) == 1:
            in_hand[0].deaths_alone += 1
            if in_hand[0].deaths_alone >= DEATHS_ALONE:
                guilty = in_hand.pop()
        for work in reversed(in_hand + waiting):
            if work.deaths >= DEATHS_BEFORE_ALONE:
                self._suspects.appendleft(work)
            else:
                self._ahead.appendleft(work)
        return guilty

    def drop(self) -> None:
        """Hand out nothing more: the run stops, and what is left stays pending."""
        self._source = iter(())
        self._ahead.clear()
        self._suspects.clear()

    def _choose(self, holding: Holding) -> Work | None:
        if holding.is_suspect:
            return None
        self._look_ahead()
        if self._ahead:
            return self._ahead.popleft()
        if self._suspects and not len(holding):
            return self._suspects.popleft()
        return None

    def _look_ahead(self) -> None:
        if not self._ahead and (work := next(self._source, None)) is not None:
            self._ahead.append(work)
