"""What a benchmark shows a person, and where it was measured."""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
from statistics import median
from typing import Any

import click
import torch


def describe_machine() -> dict[str, Any]:
    """Card, versions, commit and the hash of what is not committed."""
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


COMPARISON_HEAD = f"{'engine':32} rows  default audio_s/s        share of the default  predicted"


def comparison_line(found: dict[str, Any]) -> str:
    """One variant beside the default engine, as COMPARISON_HEAD names the columns; under it what went wrong."""
    line = f"{found['name']:32} {found['num_rows']:>4}"
    if found["ratio"] is not None:
        share = f"{found['ratio']:.3f} ({found['ratio_min']:.3f} to {found['ratio_max']:.3f})"
        line += f" {median(found['default_audio_s_per_s']):>8.1f} {median(found['audio_s_per_s']):>8.1f}  {share:>27}"
        line += f"  {found['predicted_ratio']:>9.2f}"
    if not found["is_complete"]:
        line += "  NOT EVERY CLIP WAS WHOLE"
    return f"{line}  {found['problem']}" if found["problem"] else line


def print_table(report: dict[str, Any]) -> None:
    """Everything on stdout, one row a round."""
    machine = report["machine"]
    click.echo(f"{machine['device']}, torch {machine['torch']}, commit {machine['commit']} (dirty {machine['dirty']})")
    click.echo("engine " + ", ".join(f"{name} {value}" for name, value in report["engine"].items()))
    click.echo("workload " + ", ".join(f"{name} {value}" for name, value in report["workload"].items()))
    click.echo(
        f"cache {report['cache']}, concurrency {report['concurrency']}; model {report['load_s']:.1f} s, engine "
        f"{report['open_s']:.1f} s, start to first clip {report['start_to_first_clip_s']:.1f} s"
    )
    head = "round audio_s/s  rows/s   wall_s  first_s  tail_s  p50_s  p99_s  gpu  peak_GiB  completed"
    click.echo(head)
    for i, row in enumerate(report["rounds"]):
        gpu, peak = row["gpu_utilization"], row["peak_memory_gib"]
        click.echo(
            f"{i:>5} {row['audio_s_per_s']:>9.1f} {row['rows_per_s']:>7.1f} {row['wall_s']:>8.2f} "
            f"{row['first_result_s']:>8.2f} {row['tail_s']:>7.2f} {row['latency_p50_s']:>6.2f} "
            f"{row['latency_p99_s']:>6.2f} {'n/a' if gpu is None else f'{gpu:.0%}':>4} "
            f"{'n/a' if peak is None else f'{peak:.1f}':>9} {row['completed']}/{row['attempted']}"
        )
    stages = report["rounds"][-1]["stages_s"]
    click.echo("mean seconds a row: " + ", ".join(f"{name} {value:.3f}" for name, value in stages.items()))
    click.echo("first audio and underrun: n/a (whole clips; measured in chunked mode only)")
