"""A worker as the parent sees it: its process, its channel, the rows assigned to it, and how it ended."""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tts_batch.ipc.messages import (
    EngineReady,
    FromWorker,
    OpenEngine,
    RowsProgress,
    ToWorker,
    WorkerClosing,
    WorkerFailed,
)
from tts_batch.ipc.transport import Channel, TransportError
from tts_batch.run.devices import Device
from tts_batch.run.dispatch import AssignedRows
from tts_batch.run.launchers import Launcher, LocalLauncher, StartedWorker

REAP_S = 10.0
STARTS = 3  # of a first worker that a signal ends before its engine is open
_LIKELY = {
    signal.SIGKILL: "most often the machine ran out of memory",
    signal.SIGBUS: "most often /dev/shm is too small: give the container a larger one, as with --shm-size",
}


class WorkerProcess:
    """A worker of one device. Its process may die and be started again; segments are named after the starts."""

    def __init__(self, journal: Path, name: str, device: Device, launcher: Launcher | None = None) -> None:
        self._launcher: Launcher = launcher or LocalLauncher()
        self.name = name
        self.folder = journal / name
        self.device = device
        self.assigned = AssignedRows()
        self.starts = 0
        self.consecutive_deaths = 0  # without a row that ended, or a poison row, between them
        self.consecutive_poison_rows = 0  # without a row that ended between them
        self.ever_ready = False
        self.is_abandoned = False
        self.process: StartedWorker | None = None
        self.channel: Channel[ToWorker, FromWorker] | None = None
        self._stuck: StartedWorker | None = None
        self._reset()

    def _reset(self) -> None:
        self.is_ready = self.has_all_rows = self.is_closing = False
        self.cause = ""  # why the parent ended it, or the error that it reported
        self.has_stalled = self.died_of_signal = False
        self.lost = ""  # how it was lost with its machine
        self.last_sign = time.monotonic()
        self.killed_at: float | None = None

    def start(self, opening: OpenEngine) -> Channel[ToWorker, FromWorker]:
        """Start the worker program, which writes new segments."""
        self._reset()
        self.starts += 1
        self.segments = opening.segments
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "stderr.log").open("ab") as log:
            self._log_start = log.tell()
            ours, self.process = self._launcher.start(self.device, log)
        self.channel = Channel[ToWorker, FromWorker](ours, (EngineReady, RowsProgress, WorkerClosing, WorkerFailed))
        self.send(opening)
        return self.channel

    def send(self, message: ToWorker) -> None:
        """Send a message; a worker that cannot take it is ended. One that is gone is noticed by its channel."""
        assert self.channel is not None
        try:
            self.channel.send(message)
        except ConnectionError:
            return
        except (OSError, TransportError) as error:
            self.kill(self.cause or f"it did not take a message ({error})")

    def kill(self, cause: str = "") -> None:
        """End the process and all that it started. `reap` collects it."""
        self.cause = self.cause or cause
        self.killed_at = self.killed_at or time.monotonic()
        if self.process is not None:
            self._launcher.kill(self.process)

    def end(self) -> None:
        """Leave no process behind, whatever it is doing."""
        self.kill()
        if (process := self.process or self._stuck) is not None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(REAP_S)
        if self.channel is not None:
            self.channel.close()

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone. Its channel ends with the last of its clip processes, which hold it open too."""
        return self.process is not None and self.process.poll() is not None

    @property
    def is_done(self) -> bool:
        """Whether it has ended all rows and gets no more: it frees its device, and exits."""
        return self.is_closing and self.has_all_rows and not len(self.assigned)

    @property
    def is_stuck(self) -> bool:
        """Whether its process did not end when it was killed: in a driver it may wait for a device for ever."""
        return self._stuck is not None

    def reap(self) -> str:
        """Collect the process, which has closed its channel or never will, and say how it ended."""
        assert self.process is not None and self.channel is not None
        try:
            status = self.process.wait(REAP_S if self.is_closing else 1.0)
        except subprocess.TimeoutExpired:
            self.kill("it closed its channel and did not end")
            try:
                status = self.process.wait(REAP_S)
            except subprocess.TimeoutExpired:
                self._stuck, status = self.process, -signal.SIGKILL
        self.died_of_signal = status < 0 and not self.cause
        self.lost = self._launcher.how_lost(self.process) if self.died_of_signal else ""
        self.kill()  # children of the engine that outlived it
        self.channel.close()
        self.process = self.channel = None
        stuck = f", and its process {self._stuck.pid} does not end" if self._stuck else ""
        return f"worker {self.name} {self._how(status)}{stuck}{self._last_lines()}"

    @property
    def cannot_start(self) -> bool:
        """Whether its engine never opened, though it was not merely killed once or twice from outside."""
        return not self.ever_ready and (not self.died_of_signal or self.starts >= STARTS)

    def _how(self, status: int) -> str:
        if self.cause:
            return f"was ended: {self.cause}" if status < 0 else f"failed: {self.cause.rstrip('.')}"
        if self.lost:
            return f"was lost: {self.lost}"
        if status >= 0:
            return f"ended with status {status}"
        number = signal.Signals(-status)
        return f"died of {number.name}" + (f" ({_LIKELY[number]})" if number in _LIKELY else "")

    def _last_lines(self, count: int = 3) -> str:
        log = self.folder / "stderr.log"
        if self.cause:
            return f" (its log: {log})"
        with log.open("rb") as file:
            file.seek(max(self._log_start, log.stat().st_size - 8192))
            lines = file.read().decode("utf-8", "replace").strip().splitlines()[-count:]
        return f"; its last lines in {log}: " + " | ".join(lines) if lines else ""
