"""Detects stalls: an overdue unit of work, a stalled stage, a request that no stage holds.

The compute thread reports units of work and inspects the stages; any thread may ask whether a unit is overdue.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

LOOKS_PER_TIMEOUT = 8
MIN_LOOKS = 3  # consecutive looks, with work between them, before a request counts as stuck: it may be slow only


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of work: its name, the request that it is for (None: for several), and when it started."""

    name: str
    request_id: str | None
    started_s: float


@dataclass(frozen=True, slots=True)
class _Sighting:
    """Where a request was last seen, its progress, and when it was first seen there."""

    stage: str
    progress: int
    first_s: float
    first_look: int


class Watchdog:
    """Tracks how long each request has been in the same state, in looks and in seconds of working time."""

    def __init__(self, timeout_s: float, unit_s: defaultdict[str, float] | None = None) -> None:
        """`unit_s` takes the seconds of every unit, added up by name."""
        self.timeout_s = timeout_s
        self._unit_s = defaultdict(float) if unit_s is None else unit_s
        self._unit: Unit | None = None
        self._excused_s = 0.0
        self._next_look_s = 0.0
        self._num_looks = 0
        self._seen: dict[str, _Sighting] = {}
        self._moved: dict[str, float] = {}  # when anything last moved in a stage

    @contextmanager
    def unit(self, name: str, request_id: str | None = None) -> Iterator[None]:
        """A unit of work that must end within the timeout."""
        unit = self._unit = Unit(name, request_id, time.monotonic())
        try:
            yield
        finally:
            self._unit = None
            self._unit_s[name] += time.monotonic() - unit.started_s

    @property
    def overdue(self) -> Unit | None:
        """The current unit, if it has taken longer than the timeout."""
        unit = self._unit
        return unit if unit and time.monotonic() - unit.started_s > self.timeout_s else None

    @contextmanager
    def excused(self) -> Iterator[None]:
        """Time spent waiting for the caller, which is not counted."""
        started_s = time.monotonic()
        try:
            yield
        finally:
            self._excused_s += time.monotonic() - started_s

    @property
    def wants_to_look(self) -> bool:
        """Whether it is time for `look`: several times per timeout."""
        return self._now_s() >= self._next_look_s

    def look(
        self, owed: Iterable[str], decoding: Iterable[tuple[str, int]], in_code2wav: Iterable[tuple[str, int]]
    ) -> list[str]:
        """Which requests are stuck.

        Args:
            owed: all requests that still wait for their result.
            decoding: those in the runner and how far each is; -1: it waits, which is fine while others move.
            in_code2wav: those in Code2Wav and how far each is; one may wait there while others move.
        """
        now_s = self._now_s()
        self._next_look_s = now_s + self.timeout_s / LOOKS_PER_TIMEOUT
        self._num_looks += 1
        places = dict.fromkeys(owed, ("nowhere", 0))
        places |= {name: ("runner", progress) for name, progress in decoding if name in places}
        places |= {name: ("code2wav", progress) for name, progress in in_code2wav if name in places}
        before, self._seen = self._seen, {}
        for name, (stage, progress) in places.items():
            old = before.pop(name, None)
            if old is not None and (old.stage, old.progress) == (stage, progress):
                self._seen[name] = old
                continue
            self._seen[name] = _Sighting(stage, progress, now_s, self._num_looks)
            self._moved |= {stage: now_s} | ({old.stage: now_s} if old else {})
        self._moved |= {old.stage: now_s for old in before.values()}
        return [name for name, sighting in self._seen.items() if self._is_stuck(sighting, now_s)]

    def _is_stuck(self, at: _Sighting, now_s: float) -> bool:
        may_wait = at.stage == "code2wav" or at.progress < 0
        since_s = self._moved[at.stage] if may_wait else at.first_s
        return now_s - since_s > self.timeout_s and self._num_looks - at.first_look >= MIN_LOOKS

    def _now_s(self) -> float:
        return time.monotonic() - self._excused_s


def all_stacks() -> str:
    """What every thread is doing, for the log."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    return "\n".join(stacks)
