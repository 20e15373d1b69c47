"""The workers of one model: started, given rows, watched with deadlines, restarted, and ended."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tts_batch.errors import CannotContinueError, Reason
from tts_batch.ipc.messages import (
    AssignRows,
    Ended,
    EngineReady,
    FromWorker,
    NoMoreRows,
    OpenEngine,
    RowRequest,
    RowsProgress,
    SegmentNames,
    StopWorker,
    WorkerClosing,
    WorkerFailed,
    ended_rows,
)
from tts_batch.ipc.transport import TransportError
from tts_batch.records import Failure
from tts_batch.run.devices import Device
from tts_batch.run.dispatch import MESSAGE_ROWS, Dispatch, find_room
from tts_batch.run.launchers import Launcher, LocalLauncher
from tts_batch.run.signals import StopSignals
from tts_batch.run.worker_process import WorkerProcess
from tts_batch.store.journal import next_start, read_outcomes, segments_of
from tts_batch.store.storage import storage_of

LOOK_FOR_ROOM_S = 2.0
"""How often a launcher whose room changes is asked for it."""

LOOKAHEAD = 2_048
"""Rows sent to a worker before its engine begins them, at most: as many as a profile decodes together."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a run waits for what may never come, and how often it tries again."""

    start_s: float = 900.0  # from a worker's start until its engine is open
    stall_s: float = 600.0  # without any row that begins or ends …
    stall_frame_s: float = 1.0  # … and this for each frame of the largest budget in flight
    answer_s: float = 60.0  # for the result of one request, from an engine that goes on without it …
    answer_frame_s: float = 1.0  # … and this for each frame of the largest budget that it holds
    close_s: float = 30.0  # from the last row until the process has ended
    stop_s: float = 10.0  # for rows in flight after a first signal
    gone_s: float = 10.0  # until a worker that was killed has closed its channel
    consecutive_deaths: int = 5  # of one worker, without a row that ends, or a poison row, between them
    consecutive_poison_rows: int = 20  # without any row that ends between them: then it is not the rows


class Listener(Protocol):
    """Gets what happens to rows and workers. `audio_s`: seconds of audio; None for a row that failed."""

    def worker_ready(self, engine: dict[str, str]) -> None: ...

    def row_ended(self, row_id: str, audio_s: float | None) -> None: ...

    def row_is_poison(self, row: RowRequest, deaths: list[Failure], message: str) -> None: ...

    def info(self, sentence: str) -> None: ...

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
        opening: Callable[[Device, SegmentNames], OpenEngine],
        listener: Listener,
        limits: Limits,
        launcher: Launcher | None = None,
    ) -> None:
        """`opening` returns the first message to a worker, by its device and what names its segments."""
        self._launcher: Launcher = launcher or LocalLauncher()
        self._shard_name, self._device = shard_name, devices[0]
        self._workers: list[WorkerProcess] = []
        for device in devices:
            self._add_worker(journal, device)
        self._looked_for_room_s = 0.0
        self._journal, self._run_number = journal, run
        self._opening = opening
        self._listener, self._limits = listener, limits
        self._selector = selectors.DefaultSelector()
        self._stopping_since: float | None = None
        self._last_death = ""
        self._deaths: dict[str, list[Failure]] = {}  # row id → how workers ended while their engine had it

    def run(self, dispatch: Dispatch, rows_left: Callable[[], int], stop: StopSignals) -> None:
        """Return when every row has ended, or after a stop. Raises CannotContinueError, and leaves no process behind.

        When it returns, workers may still be closing their engines: `close` waits for them.
        """
        self._dispatch, self._rows_left, self._stop_signals = dispatch, rows_left, stop
        self._selector.register(stop, selectors.EVENT_READ)
        try:
            for worker in self._workers:
                self._start(worker)
            while self._is_running():
                self._use_new_room()
                has_more = self._feed() or self._read_ahead()
                self._watch(0.0 if has_more else 0.5)
            if not dispatch.exhausted and self._stopping_since is None:
                raise CannotContinueError(f"No worker is left. {self._last_death}.")
        except BaseException:
            self.end()
            raise

    def close(self) -> None:
        """Wait until all workers have ended, within their deadlines; leave no process behind."""
        try:
            while any(worker.process for worker in self._workers):
                self._watch(0.5)
        finally:
            self.end()

    def end(self) -> None:
        """Leave no process behind, at once."""
        for worker in self._workers:
            worker.end()
        self._workers.clear()
        self._selector.close()

    def _watch(self, timeout_s: float) -> None:
        """Take what workers send within `timeout_s`, and see to signals and deadlines."""
        for key, _ in self._selector.select(timeout_s):
            if isinstance(key.data, WorkerProcess):
                self._receive(key.data)
            else:
                self._stop_signals.drain()
        if self._stop_signals.requested and self._stopping_since is None:
            self._stop()
        self._check_deadlines()
        self._listener.tick()

    def _is_running(self) -> bool:
        if self._stopping_since is None and self._dispatch.exhausted:
            return any(worker.process is not None and not worker.is_done for worker in self._workers)
        return any(worker.process for worker in self._workers) or self._start_again()

    def _start_again(self) -> bool:
        """Start a worker that has ended well again, when an abandoned one has left rows behind."""
        if self._dispatch.exhausted or self._stopping_since is not None:
            return False
        worker = next((worker for worker in self._workers if not worker.is_abandoned), None)
        if worker is not None:
            self._start(worker)
        return worker is not None

    def _add_worker(self, journal: Path, device: Device) -> WorkerProcess:
        name = f"{self._shard_name}w{len(self._workers)}"
        self._workers.append(WorkerProcess(journal, name, device, self._launcher))
        return self._workers[-1]

    @property
    def _num_free(self) -> int:
        """How many more workers there is room for, where the launcher's room changes."""
        return (self._launcher.num_slots or 0) - sum(worker.process is not None for worker in self._workers)

    def _use_new_room(self) -> None:
        """Start workers on machines that have joined, or are back."""
        now_s = time.monotonic()
        if now_s - self._looked_for_room_s < LOOK_FOR_ROOM_S or self._stopping_since is not None:
            return
        self._looked_for_room_s = now_s
        room = min(self._num_free, self._rows_left() + self._dispatch.waiting)
        for _ in range(room):
            ended = (worker for worker in self._workers if worker.process is None and not worker.is_abandoned)
            self._start(next(ended, None) or self._add_worker(self._journal, self._device))

    def _start(self, worker: WorkerProcess) -> None:
        start = next_start(self._journal, worker.name, self._run_number)
        names = SegmentNames(self._journal, worker.name, self._run_number, start)
        channel = worker.start(self._opening(worker.device, names))
        self._selector.register(channel, selectors.EVENT_READ, worker)

    def _feed(self) -> bool:
        """Send each worker one message of rows, if it has room; return whether one has room for more."""
        has_room = False
        for worker in self._workers:
            # A first worker gets rows while its engine opens, so that it begins at once; a restarted one, whose rows
            # another could make meanwhile, does not.
            may_wait = self._launcher.num_slots is not None  # until a machine is free
            if may_wait and not worker.is_ready and worker.process is not None and self._dispatch.exhausted:
                worker.has_all_rows = True
                worker.kill("nothing is left for it")
            early = worker.starts == 1 and not may_wait
            if worker.process is None or worker.has_all_rows or not (worker.is_ready or early):
                continue
            room, was_idle = self._room_in(worker), not len(worker.assigned)
            rows: list[RowRequest] = []
            while len(rows) < min(room, MESSAGE_ROWS) and (row := self._dispatch.take(worker.assigned)) is not None:
                rows.append(row)
            if rows:
                worker.last_sign = time.monotonic() if was_idle else worker.last_sign
                worker.send(AssignRows(tuple(rows)))
                has_room |= room > len(rows)
            if self._dispatch.exhausted:
                worker.has_all_rows = True
                worker.send(NoMoreRows())
        return has_room

    def _room_in(self, worker: WorkerProcess) -> int:
        all_assigned = [other.assigned for other in self._workers if other.process is not None]
        left = self._rows_left() + self._dispatch.waiting
        return find_room(worker.assigned, all_assigned, left, LOOKAHEAD if worker.is_ready else MESSAGE_ROWS)

    def _read_ahead(self) -> bool:
        """While no engine is open, read some of the rows that all will ask for at once; False when that is done."""
        if any(worker.is_ready for worker in self._workers) or self._dispatch.waiting >= LOOKAHEAD * len(self._workers):
            return False
        return self._dispatch.read_ahead(MESSAGE_ROWS)

    def _receive(self, worker: WorkerProcess) -> None:
        assert worker.channel is not None
        try:
            messages = worker.channel.receive_ready()
        except (OSError, TransportError) as error:
            worker.kill(f"it sent an invalid message ({error})")
            messages = None
        if messages is None:
            self._reclaim(worker)
            return
        for message in messages:
            self._take(worker, message)

    def _take(self, worker: WorkerProcess, message: FromWorker) -> None:
        worker.last_sign = time.monotonic()
        match message:
            case EngineReady(info):
                worker.is_ready = worker.ever_ready = True
                self._listener.worker_ready(info)
            case RowsProgress(begun, ended):
                for row_id in begun:
                    worker.assigned.begin(row_id)
                self._end(worker, ended)
            case WorkerClosing():
                worker.is_closing = True
            case WorkerFailed(error, disk_full):
                if disk_full:
                    raise CannotContinueError(f"{error.rstrip('.')}; the same command resumes.")
                worker.cause = error

    def _end(self, worker: WorkerProcess, ended: Ended) -> None:
        for row_id, audio_s in ended.items():
            if worker.assigned.end(row_id) is not None:
                worker.consecutive_deaths = worker.consecutive_poison_rows = 0
                self._listener.row_ended(row_id, audio_s)

    def _reclaim(self, worker: WorkerProcess) -> None:
        """A worker has ended: its segments say what it has done, the rest is assigned to another."""
        assert worker.channel is not None
        self._selector.unregister(worker.channel)
        how = worker.reap()
        if len(worker.assigned):
            names = worker.segments
            storage_of(names.journal.parent).refresh(f"{names.worker}/")
            for segment in segments_of(names.journal, names.worker, names.run, names.start):
                self._end(worker, ended_rows(read_outcomes(segment)))
        if self._stopping_since is not None or (worker.has_all_rows and not len(worker.assigned)):
            return
        self._last_death = how
        if worker.cannot_start:
            raise CannotContinueError(f"The engine cannot start: {how}.")
        worker.consecutive_deaths += not worker.lost
        for row_id in () if worker.lost else worker.assigned.in_flight:
            self._deaths.setdefault(row_id, []).append(Failure(_reason(worker), f"{how}."))
        poison_row = self._dispatch.reclaim(worker.assigned, blame=not worker.lost)
        if poison_row is not None:
            worker.consecutive_deaths = 0
            worker.consecutive_poison_rows += 1
            deaths, alone = (count[poison_row.id] for count in (self._dispatch.deaths, self._dispatch.deaths_alone))
            message = f"{deaths} workers died while they had this row, {alone} while they had no other: {how}."
            self._listener.row_is_poison(poison_row, self._deaths.pop(poison_row.id), message)
        if self._dispatch.exhausted:
            return
        limits = self._limits
        worker.is_abandoned = (
            worker.consecutive_deaths >= limits.consecutive_deaths
            or worker.consecutive_poison_rows >= limits.consecutive_poison_rows
            or worker.is_stuck
        )
        self._listener.warn(f"{how}; {'not restarting it' if worker.is_abandoned else 'reassigning its rows'}.")
        if not worker.is_abandoned and (self._launcher.num_slots is None or self._num_free > 0):
            self._start(worker)

    def _stop(self) -> None:
        self._stopping_since = time.monotonic()
        self._dispatch.drop()
        self._listener.info("Stopping: rows in flight may end, the rest stays pending. Signal again to stop at once.")
        for worker in self._workers:
            if worker.process is not None and worker.is_ready:
                worker.has_all_rows = True
                worker.send(StopWorker(self._limits.stop_s))
            else:
                worker.kill("the run was stopped")

    def _check_deadlines(self) -> None:
        now, limits = time.monotonic(), self._limits
        for worker in self._workers:
            silent_s = now - worker.last_sign
            if worker.process is None:
                continue
            if worker.has_ended:
                worker.kill()  # what it started and left may hold its channel open
            if worker.killed_at is not None:
                if now - worker.killed_at > limits.gone_s:
                    self._reclaim(worker)
            elif self._stopping_since is not None:
                if now - self._stopping_since > limits.stop_s + 5.0:
                    worker.kill("it did not stop in time")
            elif not worker.is_ready:
                if silent_s > limits.start_s:
                    worker.kill(f"its engine was not open after {limits.start_s:.0f} s")
            elif not len(worker.assigned):
                if worker.has_all_rows and silent_s > limits.close_s:
                    worker.kill("it did not end after its last row")
            elif silent_s > limits.stall_s and silent_s > (allowed_s := self._stall_limit_s(worker)):
                worker.has_stalled = True
                worker.kill(f"no row ended for {allowed_s:.0f} s")

    def _stall_limit_s(self, worker: WorkerProcess) -> float:
        budgets = (piece.max_frames for row in worker.assigned.in_flight.values() for piece in row.pieces)
        return self._limits.stall_s + self._limits.stall_frame_s * max(budgets, default=0)


def _reason(worker: WorkerProcess) -> Reason:
    if worker.has_stalled:
        return "stalled"
    return "out_of_memory" if "OutOfMemory" in worker.cause else "worker_crash"
