"""One place for a worker: its process, its channel, what it holds, and how it ended. Seen from the parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tts_batch.ipc.channel import Channel, ChannelError, Message
from tts_batch.run.devices import Device
from tts_batch.run.dispatch import Holding

REAP_S = 10.0
STARTS = 3  # of a first worker that a signal ends before its engine is open
_LIKELY = {
    signal.SIGKILL: "most often the machine ran out of memory",
    signal.SIGBUS: "most often /dev/shm is too small: give the container a larger one, as with --shm-size",
}


class Slot:
    """A worker process may die in a slot and another take its place; the segment number counts the starts."""

    def __init__(self, journal: Path, name: str, device: Device) -> None:
        self.name = name
        self.folder = journal / name
        self.device = device
        self.holding = Holding()
        self.starts = 0
        self.deaths_in_a_row = 0  # without a row that ended, or was found guilty, between them
        self.killers_in_a_row = 0  # guilty rows without one that ended between them
        self.ever_ready = False
        self.is_given_up = False
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: Channel | None = None
        self._stuck: subprocess.Popen[bytes] | None = None
        self._reset()

    def _reset(self) -> None:
        self.ready = self.told_end = self.said_bye = False
        self.cause = ""  # why the parent ended it, or what it said before it broke
        self.stalled = self.died_of_signal = False
        self.last_sign = time.monotonic()
        self.killed_at: float | None = None

    def start(self, segment: Path, start: Message) -> Channel:
        """Start the worker program on a new segment."""
        self._reset()
        self.starts += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        self.segment = segment
        self.channel, theirs = Channel.pair()
        with theirs, (self.folder / "stderr.log").open("ab") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tts_batch.worker.worker", str(theirs.fileno())],
                env={**os.environ, **self.device.environment},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C in the terminal reaches the parent alone
            )
        self.send({**start, "segment": str(segment)})
        return self.channel

    def send(self, message: Message) -> None:
        """Send a message; a worker that cannot take it is ended. That one is gone, its channel tells."""
        assert self.channel is not None
        try:
            self.channel.send(message)
        except ConnectionError:
            return
        except (OSError, ChannelError) as error:
            self.kill(self.cause or f"it did not take a message ({error})")

    def kill(self, cause: str = "") -> None:
        """End the process and all that it started. `reap` collects it."""
        self.cause = self.cause or cause
        self.killed_at = self.killed_at or time.monotonic()
        if self.process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

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
        """Whether the process is gone. Its channel tells, too, unless something that it started holds that open."""
        return self.process is not None and self.process.poll() is not None

    @property
    def is_closing(self) -> bool:
        """Whether its worker has ended all rows and will get no more: it frees its device, and goes."""
        return self.said_bye and self.told_end and not len(self.holding)

    @property
    def is_stuck(self) -> bool:
        """Whether its process did not go away when it was killed: in a driver it may wait for a device for ever."""
        return self._stuck is not None

    def reap(self) -> str:
        """Collect the process, which has closed its channel or will never, and say how it ended."""
        assert self.process is not None and self.channel is not None
        try:
            status = self.process.wait(REAP_S if self.said_bye else 1.0)
        except subprocess.TimeoutExpired:
            self.kill("it closed its channel and did not end")
            try:
                status = self.process.wait(REAP_S)
            except subprocess.TimeoutExpired:
                self._stuck, status = self.process, -signal.SIGKILL
        self.died_of_signal = status < 0 and not self.cause
        self.kill()  # children of the engine that outlived it
        self.channel.close()
        self.process = self.channel = None
        stuck = f", and its process {self._stuck.pid} does not go away" if self._stuck else ""
        return f"worker {self.name} {self._how(status)}{stuck}{self._last_lines()}"

    @property
    def cannot_start(self) -> bool:
        """Whether its engine never opened, and not because somebody or the machine killed it once or twice."""
        return not self.ever_ready and (not self.died_of_signal or self.starts >= STARTS)

    def _how(self, status: int) -> str:
        if self.cause:
            return f"was ended: {self.cause}" if status < 0 else f"broke: {self.cause.rstrip('.')}"
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
