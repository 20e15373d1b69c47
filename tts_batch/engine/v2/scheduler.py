"""Decides which rows decode next: slots, KV pages and the order of admission. Pure Python; it never touches a tensor.

A request's worst case (prompt and whole codec budget) is reserved when it is admitted, so nothing is ever preempted.
Waiting rows are admitted longest first, so that the last ones to end are short; arrivals are ranked in windows, so
that a short row waits for a bounded number of others.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from tts_batch.engine.runner import EngineRow

ADMISSION_BURST = 8  # admit when at least one slot in this many is free, or nothing decodes


class PagePool:
    """KV pages by number. A request's pages are freed together."""

    def __init__(self, num_pages: int) -> None:
        self._free = list(range(num_pages - 1, -1, -1))
        self.num_pages = num_pages

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Raises ValueError when there are too few: check `num_free` first."""
        if count > len(self._free):
            raise ValueError(f"{count} pages asked for, {len(self._free)} free")
        taken = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        return taken

    def give_back(self, pages: Sequence[int]) -> None:
        self._free.extend(reversed(pages))


class Scheduler:
    """Slots 0 .. max_num_seqs - 1, lowest free slot first."""

    def __init__(self, max_num_seqs: int, pages: PagePool, page_size: int, look_ahead: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.pages = pages
        self.page_size = page_size
        self.look_ahead = look_ahead
        self.active: dict[int, EngineRow] = {}
        self._free_slots = list(range(max_num_seqs))
        self._waiting: list[tuple[tuple[int, int, int], EngineRow]] = []  # a heap
        self._arrivals = 0

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def room(self) -> int:
        """How many more rows may wait."""
        return self.look_ahead - len(self._waiting)

    @property
    def waiting(self) -> list[EngineRow]:
        return [row for _, row in self._waiting]

    def num_pages_for(self, row: EngineRow) -> int:
        """The worst case: every position the row can ever store."""
        return -(-(row.prompt.num_tokens + row.request.max_frames) // self.page_size)

    def add(self, row: EngineRow) -> None:
        rank = (self._arrivals // self.look_ahead, -row.expected_frames, self._arrivals)
        self._arrivals += 1
        heapq.heappush(self._waiting, (rank, row))

    def admit(self, now_s: float) -> list[EngineRow]:
        """Give slots and pages to waiting rows, in bursts; the first that does not fit waits for pages."""
        limit = min(self.max_num_seqs - len(self.active), len(self._waiting))
        if self.active and limit * ADMISSION_BURST < min(self.max_num_seqs, limit + len(self.active)):
            return []
        admitted: list[EngineRow] = []
        while limit > len(admitted) and self.num_pages_for(self._waiting[0][1]) <= self.pages.num_free:
            row = heapq.heappop(self._waiting)[1]
            slot = heapq.heappop(self._free_slots)
            row.slot, row.pages, row.admitted_at_s = slot, tuple(self.pages.take(self.num_pages_for(row))), now_s
            self.active[slot] = row
            admitted.append(row)
        return admitted

    def release(self, row: EngineRow) -> None:
        """Free a row's slot and pages."""
        del self.active[row.slot]
        heapq.heappush(self._free_slots, row.slot)
        self.pages.give_back(row.pages)

    def drop_waiting(self, request_id: str) -> bool:
        """Drop a row that has not been admitted; False if it is unknown."""
        kept = [entry for entry in self._waiting if entry[1].request_id != request_id]
        found = len(kept) < len(self._waiting)
        heapq.heapify(kept)
        self._waiting = kept
        return found

    def evict(self) -> list[EngineRow]:
        """Release and return every row, admitted or waiting."""
        active = list(self.active.values())
        rows = active + self.waiting
        for row in active:
            self.release(row)
        self._waiting.clear()
        return rows
