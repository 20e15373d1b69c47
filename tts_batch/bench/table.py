"""The printed table of a benchmark, and the description of the machine that it ran on."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import click
import torch

from tts_batch.bench.gpu import METHOD
from tts_batch.bench.player import describe


def describe_machine() -> dict[str, Any]:
    """Device, versions, command, commit and a hash of uncommitted changes."""
    on_cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if on_cuda else platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": _git("rev-parse", "--short", "HEAD").strip() or None,
        "dirty": hashlib.sha256(diff.encode()).hexdigest()[:12] if (diff := _git("diff", "HEAD")) else None,
        "command": " ".join(["tts-batch", *sys.argv[1:]]),
    }


def _git(*args: str) -> str:
    try:
        return subprocess.run(["git", *args], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def print_table(report: dict[str, Any]) -> None:
    """Print a report to stdout, one line a round."""
    machine = report["machine"]
    click.echo(f"{machine['device']}, torch {machine['torch']}, commit {machine['commit']} (dirty {machine['dirty']})")
    click.echo("engine " + ", ".join(f"{name} {value}" for name, value in report["engine"].items()))
    click.echo("workload " + ", ".join(f"{name} {value}" for name, value in report["workload"].items()))
    click.echo(
        f"cache {report['cache']}, concurrency {report['concurrency']}; model {report['load_s']:.1f} s, engine "
        f"{report['open_s']:.1f} s (Code2Wav graphs {_or_na(report['capture_code2wav_s'], '.1f')}), "
        f"start to first clip {report['start_to_first_clip_s']:.1f} s"
    )
    click.echo(
        "round audio_s/s  rows/s   wall_s  first_s  tail_s  p50_s  p99_s      rtf  gpu idle  peak_GiB  completed"
    )
    for i, row in enumerate(report["rounds"]):
        peak = row["peak_memory_gib"]
        click.echo(
            f"{i:>5} {row['audio_s_per_s']:>9.1f} {row['rows_per_s']:>7.1f} {row['wall_s']:>8.2f} "
            f"{row['first_result_s']:>8.2f} {row['tail_s']:>7.2f} {_or_na(row['latency_p50_s'], '.2f'):>6} "
            f"{_or_na(row['latency_p99_s'], '.2f'):>6} {_or_na(row['rtf'], '.5f'):>8} "
            f"{_or_na(row['gpu_utilization'], '.0%'):>4} {_or_na(row['gpu_idle_steady'], '.0%'):>4} "
            f"{_or_na(peak, '.1f'):>9} {row['completed']}/{row['attempted']}"
        )
    click.echo(f"gpu, and idle in the steady state: {METHOD}")
    last = report["rounds"][-1]
    click.echo("mean seconds a row: " + _listed(last["stages_s"], ".3f"))
    click.echo("\n".join(stage_lines(last)))
    for owner, counts in report["graphs"].items():
        if failed := {name: count for name, count in counts.items() if name.startswith("failed")}:
            click.echo(f"CUDA graphs of {owner} that could not be captured: {_listed(failed, 'd')}")
    click.echo(describe(last["playback"]))


def print_ratio(reports: Mapping[str, Mapping[str, Any]]) -> None:
    """Print how many times as much audio a second the first engine makes as each other one, in their best rounds."""
    best = {name: max(row["audio_s_per_s"] for row in report["rounds"]) for name, report in reports.items()}
    first, *others = best
    for name in others:
        ratio = f"{best[first] / best[name]:.2f} times" if best[name] else "more than"
        click.echo(f"{first} makes {ratio} the audio of {name}: {best[first]:.1f} and {best[name]:.1f} audio_s/s")


def stage_lines(measured: dict[str, Any]) -> list[str]:
    """Time per frame of the loop by stage, and the use of CUDA graphs: hits, misses by bucket, eager runs."""
    counts, frames = measured["counts"], measured["frames"]
    wall_ms = 1000 * measured["wall_s"] / frames if frames else 0.0
    lines = [
        f"{frames} frames of the loop, {wall_ms:.2f} ms each; device (CUDA events, on a CPU wall time; overlapping "
        f"streams all count): {_listed(measured['device_ms_per_frame'], '.2f')}",
        "host (compute thread, by unit of work; decode includes waiting): "
        + _listed(measured["host_ms_per_frame"], ".2f"),
        "CUDA graphs: "
        + (
            "; ".join(f"{owner} {_listed(runs, 'd') or 'none'}" for owner, runs in measured["graphs"].items()) or "none"
        ),
    ]
    if frames and (row_frames := counts.get("row_frames")):
        lines[0] += f"; {row_frames / frames:.0f} rows a frame in buckets of {counts['bucket_frames'] / frames:.0f}"
    if decoded := counts.get("decoded_frames"):
        lines[-1] += f"; Code2Wav decoded {decoded / counts['code2wav_frames']:.2f} frames per frame of output"
    return lines


def _listed(values: Mapping[str, float], spec: str) -> str:
    return ", ".join(f"{name} {value:{spec}}" for name, value in values.items())


def _or_na(value: float | None, spec: str) -> str:
    return "n/a" if value is None else f"{value:{spec}}"
