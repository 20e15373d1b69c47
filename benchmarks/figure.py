"""Draws throughput against the rows decoded together, as a reproducible SVG.

    python benchmarks/figure.py [--out benchmarks/throughput.svg] [FILE ...]

Without files it draws benchmarks/data/throughput.csv, the numbers of benchmarks/log.md. A file is such a CSV, or the
JSON of `tts-batch bench --json` or benchmarks/suite.py. Needs the extra `report`.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import matplotlib as mpl

HERE = Path(__file__).parent
RECORDED = HERE / "data" / "throughput.csv"
TITLE = "Qwen3-TTS 1.7B Base shape, random weights, one NVIDIA H200, 2026-11-30"
STYLE = {
    "svg.hashsalt": "throughput",  # ids that do not change from run to run
    "svg.fonttype": "none",  # text stays text, whatever fonts are here
    "axes.spines.top": False,
    "axes.spines.right": False,
}


class Point(NamedTuple):
    """One measurement."""

    series: str
    rows: int  # decoded together
    audio_s_per_s: float


def read_points(path: Path) -> list[Point]:
    """Read the measurements of a file, in its order."""
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            return [Point(row["series"], int(row["rows"]), float(row["audio_s_per_s"])) for row in csv.DictReader(file)]
    report = json.loads(path.read_text(encoding="utf-8"))
    if "results" in report:
        return [Point(f"{r['engine']}: {r['workload']}", r["rows"], r["audio_s_per_s"]) for r in report["results"]]
    engine, workload = report["engine"], report["workload"]
    voices = "x-vector only" if workload["x_vector_only"] else "ICL"
    series = f"{engine['runner']}: {workload['name']}, {voices}, {report['cache']}"
    rows = min(workload["num_rows"], int(engine["max_num_seqs"]))
    return [Point(series, rows, measured["audio_s_per_s"]) for measured in report["rounds"]]


def draw(points: list[Point], title: str, out: Path) -> None:
    """Draw measurements as dots, and the means of each series as a line; series k has ids `dots-k` and `means-k`."""
    from matplotlib.figure import Figure

    by_series: defaultdict[str, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point in points:
        by_series[point.series][point.rows].append(point.audio_s_per_s)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.add_subplot()
        for k, (series, measured) in enumerate(by_series.items()):
            rows = sorted(measured)
            means = [mean(measured[n]) for n in rows]
            axes.plot(rows, means, color=f"C{k}", marker="_", markersize=12, label=series, gid=f"means-{k}")
            dots = [(n, value) for n in rows for value in measured[n]]
            axes.plot(*zip(*dots, strict=True), ".", color=f"C{k}", gid=f"dots-{k}")
        axes.set_xscale("log", base=2)
        ticks = sorted({point.rows for point in points})
        axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", alpha=0.3)
        axes.set_xlabel("rows decoded together")
        axes.set_ylabel("seconds of audio a second")
        axes.set_title(title, fontsize=10)
        axes.legend(frameon=False, fontsize=8, loc="upper left")
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--title", default=TITLE)
    parser.add_argument("--out", type=Path, default=HERE / "throughput.svg")
    args = parser.parse_args()
    draw([point for path in args.files or [RECORDED] for point in read_points(path)], args.title, args.out)


if __name__ == "__main__":
    main()
