"""Programs of ours that run beside the one that started them: how signals are left to it, and how it ends them."""

from __future__ import annotations

import signal
import subprocess

STOP_SIGNALS = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU,
)  # fmt: skip
"""What asks a program to stop: people, terminals that close, and schedulers, before a time limit ends it."""


def leave_signals_to_parent() -> None:
    """Ignore the signals that ask a program to stop: they reach the parent as well, which decides."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def wait_or_kill(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Wait for a process that was asked to end; return whether it did within `timeout_s`, or had to be killed."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True
