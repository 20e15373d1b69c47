"""The benchmark suite: parts by name, and a trial of it on a small checkpoint."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SUITE = [sys.executable, "-m", "benchmarks.suite"]


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SUITE, *args], capture_output=True, text=True, timeout=280, cwd=REPOSITORY)


def test_parts_can_be_picked() -> None:
    every = run("--list").stdout.split()
    assert len(set(every)) == len(every)
    assert {"v2/icl-warm", "no-graphs/icl-warm", "v1-64/fixed-128", "v2-chunked/c64"} <= set(every)
    assert run("--list", "--only", "v1-64", "v2/fixed-256").stdout.split() == ["v2/fixed-256", "v1-64/fixed-128"]
    assert run("--list", "--only", "v2").stdout.split() == [name for name in every if name.startswith("v2/")]


def test_an_unknown_part_is_named() -> None:
    failed = run("--only", "v2/everything", "v2")
    assert failed.returncode == 2
    assert "unknown part v2/everything" in failed.stderr


@pytest.mark.timeout(300)
def test_a_trial(tmp_path: Path) -> None:
    path = tmp_path / "suite.json"
    small = ["--model", "tiny-random", "--device", "cpu", "--rows", "2", "--json", str(path)]
    done = run(*small, "--only", "v1-64", "v2/icl-cold", "b2-chunked")
    assert done.returncode == 0, done.stderr
    results = json.loads(path.read_text())["results"]
    assert [found["engine"] for found in results] == ["v2"] * 2 + ["b2-chunked"] * 2 + ["v1-64"]
    for found in results:
        assert found["completed"] == found["attempted"] == found["rows"] == 2
        assert (found["playback"] is None) == (found["engine"] != "b2-chunked")
        assert found["device_ms_per_frame"].keys() >= {"frame_loop", "prefill", "code2wav"}
    assert "first audio p50" in done.stdout


def test_without_time_everything_is_skipped(tmp_path: Path) -> None:
    small = ["--model", "tiny-random", "--device", "cpu", "--rows", "2"]
    done = run(*small, "--budget-s", "0", "--only", "v2", "v1-64")
    assert done.stdout.count("skipped: no time left") == 2
