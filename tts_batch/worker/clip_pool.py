"""The clip processes of a worker: started as clips come, given one row after another, replaced when one ends.

Examining and encoding a clip is as much Python as feeding a GPU for it, so it has an interpreter of its own.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tts_batch.ipc.messages import (
    ActiveRow,
    ClipRules,
    CloseWriter,
    CommitNow,
    EngineLabels,
    FromClipProcess,
    OpenWriter,
    RetryPieces,
    RowsRecorded,
    SegmentNames,
    ToClipProcess,
    WorkerFailed,
    ended_rows,
)
from tts_batch.ipc.processes import wait_or_kill
from tts_batch.ipc.transport import Channel, TransportError
from tts_batch.records import Failure
from tts_batch.store.journal import parts_of, read_outcomes, segment_path
from tts_batch.store.storage import storage_of

log = logging.getLogger(__name__)

ROWS_PER_START = 64  # another process is started after this many rows for each: a short run needs one
MAX_ROWS = 2_048  # between engine and journal; more hold the engine back, not the memory up …
MAX_BYTES = 2**30  # … and so does this much audio
MAX_BACKLOG = 8  # rows more than another process has, for the one that knows the voice
DEATHS_ALONE = 3  # of processes that had only this row; an operator or a machine short of memory may kill one
MAX_DEATHS = 12  # of processes one after another, without an answer between them: then it is not the clips
CLOSE_S = 60.0  # until the last group is on the disk


class ClipProcessError(Exception):
    """A clip process cannot be started, or has failed. `disk_full`: for lack of space."""

    def __init__(self, message: str, *, disk_full: bool = False) -> None:
        super().__init__(message)
        self.disk_full = disk_full


@dataclass(slots=True, eq=False)
class _Sent:
    """A row on its way to the journal."""

    row: ActiveRow
    num_bytes: int
    is_suspect: bool = False  # a process ended while it had this
    deaths_alone: int = 0  # of them, while it had nothing else


@dataclass(slots=True, eq=False)
class ClipProcess:
    """One process, its segment, and the rows that it has not answered."""

    process: subprocess.Popen[bytes]
    channel: Channel[ToClipProcess, FromClipProcess]
    segment: Path
    sent: dict[str, _Sent] = field(default_factory=dict)


class ClipPool:
    """Used from one thread, which waits for `processes` to have something to read, and calls `receive` then."""

    def __init__(self, out: Path, segments: SegmentNames, max_processes: int, inherited: int) -> None:
        """`inherited`: a descriptor that each process keeps open."""
        self._out, self._segments = out, segments
        self._max_processes, self._inherited = max_processes, inherited
        self._opening: tuple[ClipRules, EngineLabels] | None = None
        self._num_starts = self._num_rows = self._num_bytes = 0
        self._consecutive_deaths = 0
        self._waiting: deque[_Sent] = deque()
        self._suspects: deque[_Sent] = deque()  # a process ended with these: one at a time, and nothing beside it
        self.processes: list[ClipProcess] = []
        self._start()  # it imports while the engine opens

    def open(self, rules: ClipRules, labels: EngineLabels) -> None:
        """Say how clips are finished. Rows may be put from now on."""
        self._opening = rules, labels
        for process in self.processes:
            self._send_opening(process)

    @property
    def is_idle(self) -> bool:
        """Whether every row is answered."""
        return not (self._num_unanswered or self._waiting or self._suspects)

    @property
    def is_full(self) -> bool:
        """Whether there are so many clips between engine and journal that no more should be taken."""
        return self._num_unanswered + len(self._waiting) >= MAX_ROWS or self._num_bytes >= MAX_BYTES

    @property
    def _num_unanswered(self) -> int:
        return sum(len(process.sent) for process in self.processes)

    def put(self, row: ActiveRow) -> None:
        """Have a row finished. Raises ClipProcessError when no process can be started for it."""
        self._num_rows += 1
        num_bytes = sum(result.audio.nbytes for result in row.results if result.audio is not None)
        self._num_bytes += num_bytes
        self._waiting.append(_Sent(row, num_bytes))
        if len(self.processes) < min(self._max_processes, 1 + self._num_rows // ROWS_PER_START):
            self._start()
        self._send_waiting()

    def receive(self, process: ClipProcess) -> Iterator[RetryPieces | RowsRecorded]:
        """Yield what a process has answered. Raises ClipProcessError when it says that it failed.

        If it has ended, what it had recorded counts, and the rest is given to another one.
        """
        try:
            messages = process.channel.receive_ready()
        except (OSError, TransportError) as error:
            log.warning("a clip process sent an invalid message: %s", error)
            messages = None
        if messages is None:
            yield from self._reclaim(process)
            return
        for message in messages:
            if isinstance(message, WorkerFailed):
                raise ClipProcessError(message.error, disk_full=message.disk_full)
            if isinstance(message, RetryPieces):
                if self._answered(process, message.row_id):
                    yield message
            else:
                assert isinstance(message, RowsRecorded)
                ended = message.ended
                yield RowsRecorded({row_id: ended[row_id] for row_id in ended if self._answered(process, row_id)})
        self._send_waiting()

    def commit_now(self) -> None:
        """Commit what is under way without waiting for more."""
        for process in self.processes:
            if process.sent:
                self._send(process, CommitNow())

    def close(self) -> None:
        """End the processes, once all that they have is recorded; by force after CLOSE_S."""
        for process in self.processes:
            self._send(process, CloseWriter())
        for process in self.processes:
            wait_or_kill(process.process, CLOSE_S)
            process.channel.close()
        self.processes.clear()

    def _answered(self, process: ClipProcess, row_id: str) -> bool:
        sent = process.sent.pop(row_id, None)
        if sent is None:
            log.warning("ignored an answer of a clip process: it did not have %r", row_id)
            return False
        self._num_bytes -= sent.num_bytes
        self._consecutive_deaths = 0
        return True

    def _send_waiting(self) -> None:
        if self._suspects:
            if not self._num_unanswered:
                self._send_row(self.processes[0], self._suspects.popleft())
                self.commit_now()
            return
        if any(sent.is_suspect for process in self.processes for sent in process.sent.values()):
            return
        while self._waiting:
            sent = self._waiting.popleft()
            self._send_row(self._choose(sent.row), sent)

    def _choose(self, row: ActiveRow) -> ClipProcess:
        """The process that has read the reference of the row, unless it has far more to do than another."""
        least = min(self.processes, key=lambda process: len(process.sent))
        if row.request.reference is None:
            return least
        own = self.processes[hash(row.request.reference.key) % len(self.processes)]
        return own if len(own.sent) <= len(least.sent) + MAX_BACKLOG else least

    def _send_row(self, process: ClipProcess, sent: _Sent) -> None:
        process.sent[sent.row.id] = sent
        self._send(process, sent.row)

    def _send(self, process: ClipProcess, message: ToClipProcess) -> None:
        try:
            process.channel.send(message)
        except OSError:  # it has ended, or is stuck: its end is seen when its channel is read
            process.process.kill()

    def _start(self) -> None:
        self._num_starts += 1
        names = self._segments
        segment = segment_path(names.journal, names.worker, names.run, names.start, self._num_starts)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-m", "tts_batch.worker.clip_process", str(theirs.fileno())],
                    env=os.environ | {"OMP_NUM_THREADS": "1"},  # else NumPy has a thread for each core
                    pass_fds=[theirs.fileno(), self._inherited],
                    stdin=subprocess.DEVNULL,
                )
            except OSError as error:
                ours.close()
                raise ClipProcessError(f"A process for clips cannot be started: {error}") from error
        channel = Channel[ToClipProcess, FromClipProcess](ours, (RetryPieces, RowsRecorded, WorkerFailed))
        self.processes.append(ClipProcess(process, channel, segment))
        if self._opening is not None:
            self._send_opening(self.processes[-1])

    def _send_opening(self, process: ClipProcess) -> None:
        assert self._opening is not None
        rules, labels = self._opening
        self._send(process, OpenWriter(self._out, process.segment, rules, labels))

    def _reclaim(self, process: ClipProcess) -> Iterator[RowsRecorded]:
        """A process has ended: yield what it has recorded, and give the rest to another one, row by row."""
        self.processes.remove(process)
        process.channel.close()
        process.process.kill()
        status = process.process.wait()
        log.warning("a clip process ended with status %d; another one takes its %d clips", status, len(process.sent))
        storage_of(self._out).refresh(f"{self._segments.worker}/")
        for part in parts_of(process.segment):
            lines = (line for line in read_outcomes(part) if line.id in process.sent)
            ended = ended_rows(lines)
            for row_id in ended:
                self._answered(process, row_id)
            yield RowsRecorded(ended)
        self._consecutive_deaths += 1
        if self._consecutive_deaths >= MAX_DEATHS:
            count = self._consecutive_deaths
            raise ClipProcessError(f"{count} clip processes ended one after another, the last with status {status}.")
        was_alone = len(process.sent) == 1
        for sent in process.sent.values():
            sent.is_suspect = True
            sent.deaths_alone += was_alone
            if sent.deaths_alone >= DEATHS_ALONE:
                message = f"{sent.deaths_alone} clip processes ended while they had this clip and no other."
                sent.row.fail(Failure("worker_crash", message))
                sent.deaths_alone = 0
            self._suspects.append(sent)
        process.sent.clear()
        self._start()
        self._send_waiting()
