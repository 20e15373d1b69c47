"""The process of our own engine in a worker: its death is a worker's death, and costs no row."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from tests.run.support import journalled, make_config, read_manifest, start_job

NUM_ROWS = 6


def test_a_killed_engine_costs_no_row(tmp_path: Path) -> None:
    config = make_config(tmp_path, NUM_ROWS, model="tiny-noise", engine="native")
    job = start_job(config)
    os.kill(_engine_of(job.pid), signal.SIGKILL)
    said = job.communicate(timeout=120)[0]
    assert job.returncode == 0, said
    assert "died of SIGKILL" in said
    assert [row["status"] for row in read_manifest(config.out)] == ["ok"] * NUM_ROWS
    assert set(journalled(config.out).values()) == {1}


def _engine_of(pid: int, timeout_s: float = 60.0) -> int:
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        for process in _descendants(pid):
            with suppress(OSError):
                if b"engine.host" in Path(f"/proc/{process}/cmdline").read_bytes():
                    return process
        time.sleep(0.02)
    raise AssertionError("no engine's process came")


def _descendants(pid: int) -> list[int]:
    with suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").iterdir()
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
        return children + [process for child in children for process in _descendants(child)]
    return []
