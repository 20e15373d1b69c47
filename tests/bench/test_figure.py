"""The figure of benchmarks/: drawn from the recorded numbers, and the committed one is what the script draws."""

from __future__ import annotations

import csv
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")  # the extra `report`, which CI installs

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPT = BENCHMARKS / "figure.py"


def draw(out: Path, *args: str) -> str:
    run = subprocess.run([sys.executable, SCRIPT, "--out", out, *args], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout) == (0, ""), run.stderr
    return out.read_text()


def texts(svg: str) -> list[str]:
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg)


def lines(svg: str) -> dict[str, list[tuple[float, float]]]:
    """The corners of each series, in points of the page, and the places of its dots."""
    found = {}
    for name, group in re.findall(
        r'<g id="((?:means|dots)-\d+)">(.*?)(?=<g id="(?:means-|dots-|legend)|\Z)', svg, re.DOTALL
    ):
        path = re.search(r'<path d="(M[^"]*)" clip-path', group)
        corners = path[1] if path else " ".join(re.findall(r'<use [^>]*?x="[-\d.]+" y="[-\d.]+"', group))
        numbers = [float(number) for number in re.findall(r'(?<=[ML" ])-?\d+\.?\d*(?=[ "\n]|$)', corners)]
        found[name] = list(zip(numbers[::2], numbers[1::2], strict=True))
    return found


def test_the_same_numbers_give_the_same_bytes_and_the_committed_figure(tmp_path: Path) -> None:
    drawn = draw(tmp_path / "one.svg")
    assert draw(tmp_path / "two.svg") == drawn
    committed = (BENCHMARKS / "throughput.svg").read_text()
    assert texts(committed) == texts(drawn)
    found, expected = lines(drawn), lines(committed)
    assert found.keys() == expected.keys()
    for name, corners in expected.items():  # another matplotlib may set the page a little differently
        assert [x for corner in found[name] for x in corner] == pytest.approx([x for c in corners for x in c], abs=3)


def test_every_recorded_number_is_in_the_log() -> None:
    log = (BENCHMARKS / "log.md").read_text()
    with (BENCHMARKS / "data" / "throughput.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            assert f"{int(row['audio_s_per_s']):,}" in log
            assert f"ommit {row['commit']}" in log


def test_results_of_bench_and_suite_are_read(tmp_path: Path) -> None:
    read_points: Any = runpy.run_path(str(SCRIPT))["read_points"]
    bench, suite = tmp_path / "bench.json", tmp_path / "suite.json"
    workload = {"name": "fixed", "num_rows": 1024, "x_vector_only": True}
    engine = {"runner": "v2", "max_num_seqs": "512"}
    rounds = [{"audio_s_per_s": 2203.0}, {"audio_s_per_s": 2225.0}]
    bench.write_text(json.dumps({"engine": engine, "workload": workload, "cache": "warm", "rounds": rounds}))
    suite.write_text(json.dumps({"results": [{"engine": "v2", "workload": "one", "rows": 64, "audio_s_per_s": 9.0}]}))
    series = "v2: fixed, x-vector only, warm"
    assert read_points(bench) == [(series, 512, 2203.0), (series, 512, 2225.0)]
    assert read_points(suite) == [("v2: one", 64, 9.0)]
    assert series in texts(draw(tmp_path / "drawn.svg", str(bench), str(suite)))
