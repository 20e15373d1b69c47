"""`tts-batch bench --gpus`: replicas of an engine, alone and together."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tts_batch.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from tts_batch.bench.replica import ReplicaJob


def bench_replicas(job: ReplicaJob, gpus: str, rounds: int, deadline_s: float, json_path: Path | None) -> ExitStatus:
    """Print a line for each setting as soon as it is measured; all of it goes to `json_path`, if one is given."""
    if gpus != "all" and not (gpus.isdecimal() and int(gpus)):
        raise UsageError(f"--gpus {gpus!r} is neither 'all' nor a number from 1 on.")
    from tts_batch.bench.replicas import TABLE_HEAD, choose_devices, measure_replicas, table_line

    count = None if gpus == "all" else int(gpus)
    devices, pairs = choose_devices(count, job.engine.device, split=job.engine.placement == "split")
    if job.workload.num_rows < len(devices):
        raise UsageError(f"--rows {job.workload.num_rows} leaves some of {len(devices)} replicas without a row.")
    report: dict[str, Any] = {
        "workload": {name: getattr(job.workload, name) for name in job.workload.__slots__},
        "cache": "cold" if job.cold else "warm",
        "concurrency": job.at_once or "max",
        "settings": [],
    }
    engine = None
    for setting, replica in measure_replicas(job, devices, pairs, rounds, deadline_s):
        if not report["settings"]:
            report["machine"] = replica["machine"] | {"command": " ".join(["tts-batch", *sys.argv[1:]])}
            _show("machine", report["machine"])
            _show("workload", report["workload"])
            click.echo(f"cache {report['cache']}, concurrency {report['concurrency']} each")
        if replica["engine"] != engine:
            engine = replica["engine"]
            _show("engine", engine)
            click.echo(f"open after {replica['open_s']:.1f} s, warm after {replica['warm_up_s']:.1f} s more")
            click.echo(TABLE_HEAD)
        report["settings"].append({**setting.as_dict(), "replica": replica})
        click.echo(table_line(report["settings"][-1]))
        if json_path:  # each time: what was measured stays, whatever comes next
            json_path.write_text(json.dumps(report, indent=1))
    complete = all(
        found["completed"] == found["attempted"] for setting in report["settings"] for found in setting["rounds"]
    )
    return ExitStatus.OK if complete else ExitStatus.SOME_FAILED


def _show(name: str, values: dict[str, Any]) -> None:
    click.echo(f"{name} " + ", ".join(f"{key} {value}" for key, value in values.items()))
