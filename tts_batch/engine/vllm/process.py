"""The host as its engine sees it: started in a group of its own, which ends with whichever of the two ends first."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tts_batch.engine.vllm.messages import HostChannel
from tts_batch.engine.vllm.settings import Settings

REAP_S = 10.0
LOG_S = 0.5

# Ends the host's group and its folder once the pipe to it is closed, in whatever way the engine's process has ended.
# It is a process of its own, because the host may be stuck, or killed together with the engine.
_GUARD = """
import os, shutil, signal, sys
if not os.read(0, 1):
    try:
        os.killpg(int(sys.argv[1]), signal.SIGKILL)
    except OSError:
        pass
    shutil.rmtree(sys.argv[2], ignore_errors=True)
"""


class HostProcess:
    """The host program, its channel, and its guard."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        """Start both. `folder` is the engine's temporary one."""
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tts_batch.engine.vllm.host", str(theirs.fileno())],
                env=_environment(settings),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # stdout is data
                start_new_session=True,
            )
        self.channel = HostChannel(ours)
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, str(self.process.pid), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def log_stacks(self) -> None:
        """Have the host write what its threads are doing to stderr."""
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self.process.send_signal(signal.SIGUSR1)
            self.process.wait(LOG_S)

    def end(self) -> None:
        """End the host and all that it started, at once."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(REAP_S)
        self.channel.close()
        assert self._guard.stdin is not None
        with suppress(OSError):
            self._guard.stdin.write(b"x")  # the group is gone, and its number may be another's
            self._guard.stdin.close()
        try:
            self._guard.wait(REAP_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()


def _environment(settings: Settings) -> dict[str, str]:
    quiet = {"VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    return {
        **quiet,
        **os.environ,
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_OMNI_INPUT_WAIT_TIMEOUT_S": f"{settings.longest_deadline_s:g}",
    }
