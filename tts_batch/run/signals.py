"""Stopping by signal: the first of `STOP_SIGNALS` asks for a clean end, the second ends at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType

from tts_batch.errors import ExitStatus, TTSBatchError
from tts_batch.ipc.processes import STOP_SIGNALS


class Interrupted(BaseException):
    """Leave now, with nothing left behind. No `except Exception` may hold it up."""


class SecondInterrupt(KeyboardInterrupt):
    """A second signal ended a run at once."""


class StoppedEarlyError(TTSBatchError):
    """A signal came before any row was made."""

    exit_status = ExitStatus.STOPPED


class StopSignals:
    """Turns the signals into `requested` while it is entered. `fileno` becomes readable, so that a selector wakes.

    Before `gentle` is set there is nothing to bring to an end, and the first signal raises Interrupted like the second.
    Only a main thread can have signal handlers; in others (a notebook's worker) this does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self.signal_number: int | None = None  # of the signal that requested it
        self.gentle = False
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before: dict[signal.Signals, signal.Handlers | object] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        return self._read

    def drain(self) -> None:
        """Take what made `fileno` readable."""
        os.read(self._read, 64)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = self.signal_number or number
        if self.requested or not self.gentle:
            raise Interrupted
        self.requested = True
        os.write(self._write, b"!")
