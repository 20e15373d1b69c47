"""What a run says of itself: run.json, the summary that `run_job` returns, and the standing that `status` reads."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tts_batch.config import JobConfig
from tts_batch.errors import ExitStatus, UsageError
from tts_batch.store.index import JournalIndex
from tts_batch.store.journal import sync_folder
from tts_batch.store.lock import live_locks
from tts_batch.store.schema import MANIFEST

if TYPE_CHECKING:
    from tts_batch.plan.planner import Plan
    from tts_batch.store.manifest import Totals

_PACKAGES = ("tts-batch", "torch", "transformers", "tokenizers", "numpy", "pyarrow", "soundfile", "soxr")


@dataclass(frozen=True, slots=True)
class JobSummary:
    """How a run ended. `ok`, `failed` and `pending` count all input rows; `made` and the speed only this run's."""

    exit_status: ExitStatus
    out: Path
    rows: int
    ok: int
    failed: int
    pending: int
    made: int  # rows that ended in this run, ok or failed
    audio_s: float  # of all ok rows
    audio_s_per_s: float  # audio made in this run, for each second since its models were loaded
    wall_s: float
    reasons: dict[str, int] = field(default_factory=dict)  # reason → failed rows

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "out": str(self.out), "exit_status": int(self.exit_status)}


def summarise(out: Path, totals: Totals, *, rows: int, failed: bool = False, **figures: Any) -> JobSummary:
    """Sum up a run over `rows` rows; `failed`: it could not go on. `figures`: made, audio_s_per_s, wall_s."""
    if failed:
        status = ExitStatus.CANNOT_CONTINUE
    elif totals.pending or totals.is_estimate:
        status = ExitStatus.STOPPED
    else:
        status = ExitStatus.SOME_FAILED if totals.failed else ExitStatus.OK
    counts = {name: getattr(totals, name) for name in ("ok", "failed", "pending", "audio_s", "reasons")}
    return JobSummary(exit_status=status, out=out, rows=rows, **counts, **figures)


def read_run(out: Path) -> dict[str, Any]:
    """Return run.json, empty when there is none yet. Raises UsageError when something has damaged it."""
    try:
        return dict(json.loads((out / "run.json").read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError:
        raise UsageError(
            f"{out / 'run.json'} is damaged: remove it, and the `synth` command goes on with what is done."
        ) from None


def read_ended_run(out: Path) -> dict[str, Any]:
    """Return run.json of a run folder with a manifest. Raises UsageError when it is none, or a run works in it."""
    run = read_run(out)
    if not run:
        raise UsageError(f"{out} is no run folder: it has no run.json.")
    if locks := live_locks(out):
        raise UsageError(f"A run works in {out}, under {locks[0].name}. Wait for its end.")
    if not (out / MANIFEST).exists():
        raise UsageError(f"{out} has no {MANIFEST}: `tts-batch finish {out}` writes it for a run that was broken off.")
    return run


def write_run(out: Path, facts: dict[str, Any]) -> None:
    """Write run.json, whole or not at all."""
    temporary = out / f".run.json.{os.getpid()}.tmp"  # shards write it side by side
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(facts, file, ensure_ascii=False, indent=2)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(out / "run.json")
    sync_folder(out)


def versions() -> dict[str, str]:
    """Return the versions of what makes the sound, without importing any of it."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def describe_run(config: JobConfig, plan: Plan, summary: JobSummary | None) -> dict[str, Any]:
    """Return what run.json says of settings, models, versions and, at the end, of what came of it."""
    return {
        "fingerprint": plan.fingerprint,
        "settings": plan.settings,
        "config": config.model_dump(mode="json"),
        "working_folder": os.getcwd(),
        "models": [
            {"model": group.model.name, "revision": group.model.checkpoint.revision, "rows": group.num_rows}
            for group in plan.groups
        ],
        "versions": versions(),
        "counts": {"rows": plan.num_rows, "failed_in_plan": plan.num_failed},
        "summary": summary.to_dict() if summary else None,
    }


def read_status(out: Path) -> dict[str, Any]:
    """Return how far the run in `out` is: from its journal, at any moment, also while it runs."""
    live = live_locks(out)  # before run.json: what ends meanwhile has written it
    run = read_run(out)
    if not run:
        raise UsageError(f"{out} is no run folder: it has no run.json.")
    live = live or (live_locks(out) if run["state"] == "running" else [])  # what has begun meanwhile
    state = "running" if live else "broken off" if run["state"] == "running" else run["state"]
    counts = run["summary"] if run["summary"] and not live else _count_journal(out, run)
    return {
        "state": state,
        **{name: counts[name] for name in ("rows", "ok", "failed", "pending")},
        "audio_s": round(counts["audio_s"], 3),
        "started": run["started"],
        "ended": run.get("ended"),
    }


def _count_journal(out: Path, run: Mapping[str, Any]) -> dict[str, Any]:
    """Count what the journal says; a row of it that the table has no longer, or has changed, counts until the end."""
    index = JournalIndex(out)
    rows = int(run["counts"]["rows"])
    failed = index.failed + int(run["counts"]["failed_in_plan"])
    pending = max(rows - index.ok - failed, 0)
    return {"rows": rows, "ok": index.ok, "failed": failed, "pending": pending, "audio_s": index.audio_s}
