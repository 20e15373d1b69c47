"""The workers of one model: started, fed as they pull, watched with deadlines, restarted, and ended."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tts_batch.errors import CannotContinueError, Reason
from tts_batch.ipc.channel import ChannelError, Message
from tts_batch.run.devices import Device
from tts_batch.run.dispatch import MESSAGE_ROWS, Dispatch, Work, find_room
from tts_batch.run.signals import StopSignals
from tts_batch.run.slot import Slot
from tts_batch.store.journal import read_outcomes, segment_path

LOOKAHEAD = 2_048
"""Rows sent to a worker before its engine pulls them, at most: as many as a profile decodes together."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a run waits for what may never come, and how often it tries again."""

    start_s: float = 900.0  # from a worker's start until its engine is open
    stall_s: float = 600.0  # without any row ending or being pulled …
    stall_frame_s: float = 1.0  # … and this for each frame of the largest budget in flight
    answer_s: float = 60.0  # for an answer to one request, from an engine that goes on without it …
    answer_frame_s: float = 1.0  # … and this for each frame of the largest budget in its hands
    close_s: float = 30.0  # from the last row until the process is gone
    stop_s: float = 10.0  # for rows in flight after a first signal
    gone_s: float = 10.0  # until a worker that was killed has closed its channel
    deaths_in_a_row: int = 5  # of one worker, without a row ending or being found guilty between
    killers_in_a_row: int = 20  # guilty rows without any row ending between: then it is not the rows


class Listener(Protocol):
    """Who wants to know of what happens to rows and workers."""

    def worker_ready(self, engine: dict[str, str]) -> None: ...

    def row_ended(self, work: Work, audio_s: float, *, failed: bool) -> None: ...

    def row_killed_workers(self, work: Work, reason: Reason, message: str) -> None: ...

    def say(self, sentence: str) -> None: ...

    def warn(self, sentence: str) -> None: ...

    def tick(self) -> None: ...


class Pool:
    """Runs the rows of a `Dispatch` on one worker for each device."""

    def __init__(
        self,
        journal: Path,
        shard_name: str,
        run: int,
        devices: list[Device],
        start: Callable[[Device], Message],
        listener: Listener,
        limits: Limits,
    ) -> None:
        self._slots = [Slot(journal, f"{shard_name}w{number}", device) for number, device in enumerate(devices)]
        self._journal, self._run_number = journal, run
        self._start_message = start
        self._listener, self._limits = listener, limits
        self._selector = selectors.DefaultSelector()
        self._stopping_since: float | None = None
        self._last_death = ""

    def run(self, dispatch: Dispatch, rows_left: Callable[[], int], stop: StopSignals) -> None:
        """Return when every row has ended, or after a stop. Raises CannotContinueError, and leaves no process behind.

        When it returns, workers may still be closing their engines: `close` waits for them.
        """
        self._dispatch, self._rows_left, self._stop_signals = dispatch, rows_left, stop
        self._selector.register(stop, selectors.EVENT_READ)
        try:
            for slot in self._slots:
                self._start(slot)
            while self._goes_on():
                has_more = self._feed() or self._read_ahead()
                self._watch(0.0 if has_more else 0.5)
            if not dispatch.exhausted and self._stopping_since is None:
                raise CannotContinueError(f"No worker is left. {self._last_death}.")
        except BaseException:
            self.end()
            raise

    def close(self) -> None:
        """Wait until all workers are gone, as long as they may take; leave no process behind."""
        try:
            while any(slot.process for slot in self._slots):
                self._watch(0.5)
        finally:
            self.end()

    def end(self) -> None:
        """Leave no process behind, at once."""
        for slot in self._slots:
            slot.end()
        self._slots.clear()
        self._selector.close()

    def _watch(self, timeout_s: float) -> None:
        """Take what workers say within `timeout_s`, and see to signals and deadlines."""
        for key, _ in self._selector.select(timeout_s):
            if isinstance(key.data, Slot):
                self._receive(key.data)
            else:
                self._stop_signals.drain()
        if self._stop_signals.requested and self._stopping_since is None:
            self._stop()
        self._check_deadlines()
        self._listener.tick()

    def _goes_on(self) -> bool:
        if self._stopping_since is None and self._dispatch.exhausted:
            return any(slot.process is not None and not slot.is_closing for slot in self._slots)
        return any(slot.process for slot in self._slots) or self._start_again()

    def _start_again(self) -> bool:
        """Start a worker that has ended well again, when one that was given up has left rows behind."""
        if self._dispatch.exhausted or self._stopping_since is not None:
            return False
        slot = next((slot for slot in self._slots if not slot.is_given_up), None)
        if slot is not None:
            self._start(slot)
        return slot is not None

    def _start(self, slot: Slot) -> None:
        segment = segment_path(self._journal, slot.name, self._run_number, self._next_start(slot))
        patience = {"answer_s": self._limits.answer_s, "answer_frame_s": self._limits.answer_frame_s}
        channel = slot.start(segment, self._start_message(slot.device) | patience)
        self._selector.register(channel, selectors.EVENT_READ, slot)

    def _next_start(self, slot: Slot) -> int:
        """Count on from the segments of this run: several models may have run in the slot."""
        return len(list(slot.folder.glob(f"{self._run_number:05d}-*.jsonl"))) + 1

    def _feed(self) -> bool:
        """Send each worker one message of rows, if it has room; return whether one has room for more."""
        has_room = False
        for slot in self._slots:
            # A first worker gets rows while its engine opens, so that it begins at once; a restarted one, whose rows
            # another could make meanwhile, does not.
            if slot.process is None or slot.told_end or not (slot.ready or slot.starts == 1):
                continue
            room, was_idle = self._room_in(slot), not len(slot.holding)
            rows: list[Message] = []
            while len(rows) < min(room, MESSAGE_ROWS) and (work := self._dispatch.take(slot.holding)) is not None:
                rows.append(work.message)
            if rows:
                slot.last_sign = time.monotonic() if was_idle else slot.last_sign
                slot.send({"type": "rows", "rows": rows})
                has_room |= room > len(rows)
            if self._dispatch.exhausted:
                slot.told_end = True
                slot.send({"type": "end"})
        return has_room

    def _room_in(self, slot: Slot) -> int:
        holdings = [other.holding for other in self._slots if other.process is not None]
        left = self._rows_left() + self._dispatch.waiting
        return find_room(slot.holding, holdings, left, LOOKAHEAD if slot.ready else MESSAGE_ROWS)

    def _read_ahead(self) -> bool:
        """While no engine is open, read some of the rows that all will ask for at once; False when that is done."""
        if any(slot.ready for slot in self._slots) or self._dispatch.waiting >= LOOKAHEAD * len(self._slots):
            return False
        return self._dispatch.read_ahead(MESSAGE_ROWS)

    def _receive(self, slot: Slot) -> None:
        assert slot.channel is not None
        try:
            messages = slot.channel.receive_ready()
        except (OSError, ChannelError, ValueError) as error:
            slot.kill(f"it sent what is no message ({error})")
            messages = None
        if messages is None:
            self._bury(slot)
            return
        for message in messages:
            self._take(slot, message)

    def _take(self, slot: Slot, message: Message) -> None:
        slot.last_sign = time.monotonic()
        match message["type"]:
            case "ready":
                slot.ready = slot.ever_ready = True
                self._listener.worker_ready(message["info"])
            case "pulled":
                slot.holding.pull()
            case "piece":
                pass  # a sign of life from within a split row
            case "done":
                for row_id, status, audio_s in message["rows"]:
                    self._end(slot, row_id, audio_s, failed=status == "failed")
            case "bye":
                slot.said_bye = True
            case "disk_full":
                raise CannotContinueError(f"{message['error']} Make room; the same command goes on from here.")
            case "broken":
                slot.cause = message["error"]

    def _end(self, slot: Slot, row_id: str, audio_s: float, *, failed: bool) -> None:
        work = slot.holding.end(row_id)
        if work is not None:
            slot.deaths_in_a_row = slot.killers_in_a_row = 0
            self._listener.row_ended(work, audio_s, failed=failed)

    def _bury(self, slot: Slot) -> None:
        """A worker is gone, or as good as: its segment says what it has done, the rest is made by another."""
        assert slot.channel is not None
        self._selector.unregister(slot.channel)
        how = slot.reap()
        if len(slot.holding) and slot.segment.exists():
            for outcome in read_outcomes(slot.segment):
                self._end(slot, outcome.id, outcome.duration_s or 0.0, failed=outcome.status == "failed")
        if self._stopping_since is not None or (slot.told_end and not len(slot.holding)):
            return
        self._last_death = how
        if slot.cannot_start:
            raise CannotContinueError(f"The engine cannot start: {how}.")
        slot.deaths_in_a_row += 1
        guilty = self._dispatch.bury(slot.holding)
        if guilty is not None:
            slot.deaths_in_a_row = 0
            slot.killers_in_a_row += 1
            message = f"{guilty.deaths} workers died with this row in hand, {guilty.deaths_alone} with it alone: {how}."
            self._listener.row_killed_workers(guilty, _reason(slot), message)
        if self._dispatch.exhausted:
            return
        limits = self._limits
        is_hopeless = slot.deaths_in_a_row >= limits.deaths_in_a_row or slot.killers_in_a_row >= limits.killers_in_a_row
        slot.is_given_up = is_hopeless or slot.is_stuck
        self._listener.warn(f"{how}; {'it is given up' if slot.is_given_up else 'its rows go to another'}.")
        if not slot.is_given_up:
            self._start(slot)

    def _stop(self) -> None:
        self._stopping_since = time.monotonic()
        self._dispatch.drop()
        self._listener.say("Stopping: rows in flight may end, the rest stays pending. Again to stop at once.")
        for slot in self._slots:
            if slot.process is not None and slot.ready:
                slot.told_end = True
                slot.send({"type": "stop", "deadline_s": self._limits.stop_s})
            else:
                slot.kill("the run was stopped")

    def _check_deadlines(self) -> None:
        now, limits = time.monotonic(), self._limits
        for slot in self._slots:
            silent_s = now - slot.last_sign
            if slot.process is None:
                continue
            if slot.has_ended:
                slot.kill()  # what it started and left may hold its channel open
            if slot.killed_at is not None:
                if now - slot.killed_at > limits.gone_s:
                    self._bury(slot)
            elif self._stopping_since is not None:
                if now - self._stopping_since > limits.stop_s + 5.0:
                    slot.kill("it did not stop in time")
            elif not slot.ready:
                if silent_s > limits.start_s:
                    slot.kill(f"its engine was not open after {limits.start_s:.0f} s")
            elif not len(slot.holding):
                if slot.told_end and silent_s > limits.close_s:
                    slot.kill("it did not end after its last row")
            elif silent_s > limits.stall_s and silent_s > (allowed_s := self._stall_limit_s(slot)):
                slot.stalled = True
                slot.kill(f"no row ended for {allowed_s:.0f} s")

    def _stall_limit_s(self, slot: Slot) -> float:
        rows = slot.holding.in_flight.values()
        budgets = (piece.max_frames for work in rows for piece in work.planned.pieces)
        return self._limits.stall_s + self._limits.stall_frame_s * max(budgets, default=0)


def _reason(slot: Slot) -> Reason:
    if slot.stalled:
        return "stalled"
    return "out_of_memory" if "OutOfMemory" in slot.cause else "worker_crash"
