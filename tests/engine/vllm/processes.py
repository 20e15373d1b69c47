"""The processes of scripted engines, by the file in which they write their numbers."""

from __future__ import annotations

import time
from pathlib import Path


def started(pids: Path) -> list[int]:
    """Every host, and its two stages."""
    return [int(number) for number in pids.read_text().split()] if pids.exists() else []


def is_alive(process: int) -> bool:
    """Whether it runs; one that waits to be collected does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pids: Path, timeout_s: float = 30.0) -> None:
    """All that were started have ended."""
    deadline_s = time.monotonic() + timeout_s
    while alive := [process for process in started(pids) if is_alive(process)]:
        assert time.monotonic() < deadline_s, f"{alive} still run"
        time.sleep(0.02)
