"""Programs of ours that run beside the one that started them: how they leave stopping to it, and how it ends them."""

from __future__ import annotations

import signal
import subprocess


def leave_signals_to_parent() -> None:
    """Ignore what asks a program to stop: it reaches the parent as well, which decides."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def wait_or_kill(process: subprocess.Popen[bytes], patience_s: float) -> bool:
    """Wait for a process that was told to end; say whether it did by itself within `patience_s`, or was killed."""
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True
