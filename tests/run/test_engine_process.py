"""The process of our own engine in a worker: its death is a worker's death, and costs no row."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.run.support import ENGINE, journalled, make_config, read_manifest, start_job
from tts_batch.errors import CannotContinueError
from tts_batch.run.job import Limits, run_job

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


@pytest.mark.parametrize("engine", [ENGINE, "tests.isolated_engine:create"], ids=["here", "apart"])
def test_a_run_with_every_fault_ends_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    faults = {
        "row-1": "kill_once", "row-3": "missing", "row-4": "error", "row-5": "length", "row-6": "swapped",
        "row-8": "repeated", "row-9": "unknown", "row-10": "non_finite", "row-12": "late",
    }  # fmt: skip
    state = tmp_path / "state"
    state.mkdir()
    monkeypatch.setenv("FAKE_ENGINE", json.dumps({"slots": 3, "faults": faults, "state": str(state)}))
    config = make_config(tmp_path, 16, engine=engine)
    summary = run_job(config, limits=Limits(answer_s=2.0, answer_frame_s=0.0))
    failed = {row["id"]: row["reason"] for row in read_manifest(config.out) if row["status"] != "ok"}
    assert failed.pop("row-3") in ("stalled", "engine_error")  # lost, or not there at the end
    assert failed == {
        "row-4": "ref_unreadable", "row-5": "codec_budget_exhausted", "row-10": "non_finite",
    }  # fmt: skip
    assert summary.ok == 12


def test_the_time_of_a_row_does_not_run_while_hundreds_are_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ENGINE", json.dumps({"slots": 2, "row_s": 0.05}))
    config = make_config(tmp_path, 120, engine="tests.isolated_engine:create", row_time_limit=3.0)
    assert run_job(config).ok == 120  # 6 s in all, and 1 s from the 18 that are asked for first


def test_what_an_engine_apart_raises_is_what_the_run_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE", json.dumps({"fail_start": "no kernel image"}))
    with pytest.raises(CannotContinueError, match=r"cannot start.*RuntimeError: no kernel image"):
        run_job(make_config(tmp_path, engine="tests.isolated_engine:create"))


def test_a_hung_engine_apart_is_ended_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    state.mkdir()
    faults = {"faults": {"row-2": "hang_once"}, "state": str(state), "slots": 1}
    monkeypatch.setenv("FAKE_ENGINE", json.dumps(faults))
    config = make_config(tmp_path, 5, engine="tests.isolated_engine:create")
    summary = run_job(config, limits=Limits(stall_s=3.0, stall_frame_s=0.0))
    assert summary.ok == 5


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
