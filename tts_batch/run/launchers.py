"""What starts workers: here, as programs of this machine; `ray_launcher.py` starts them as actors of a Ray cluster."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Any, BinaryIO, Protocol

from tts_batch.run.devices import Device


class StartedWorker(Protocol):
    """A worker that was started, as `subprocess.Popen` shows it."""

    @property
    def pid(self) -> Any: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class Launcher(Protocol):
    """Starts workers and ends them."""

    @property
    def num_slots(self) -> int | None:
        """How many workers there is room for now, where that changes; None: as many as there are devices."""
        ...

    def start(self, device: Device, log: BinaryIO) -> tuple[socket.socket, StartedWorker]:
        """Start a worker; return the parent's end of the channel to it."""
        ...

    def kill(self, worker: StartedWorker) -> None:
        """End a worker and all that it has started."""
        ...

    def how_lost(self, worker: StartedWorker) -> str:
        """Say how a worker was lost with its machine; empty when it ended by itself."""
        ...


class LocalLauncher:
    """Starts `python -m tts_batch.worker` on this machine."""

    num_slots: int | None = None

    def start(self, device: Device, log: BinaryIO) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "tts_batch.worker", str(theirs.fileno())],
                env={**os.environ, **device.environment},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C in the terminal reaches the parent alone
            )
        return ours, process

    def kill(self, worker: StartedWorker) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGKILL)

    def how_lost(self, worker: StartedWorker) -> str:
        return ""
