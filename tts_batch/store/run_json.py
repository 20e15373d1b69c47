"""run.json: the configuration, models, versions and counts of a run folder."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tts_batch.errors import UsageError
from tts_batch.store.journal import sync_folder
from tts_batch.store.schema import MANIFEST
from tts_batch.store.storage import storage_of

if TYPE_CHECKING:
    from tts_batch.config import JobConfig
    from tts_batch.plan.planner import Plan

MAX_HISTORY = 100  # runs over one folder
_PACKAGES = ("tts-batch", "torch", "transformers", "tokenizers", "numpy", "pyarrow", "soundfile", "soxr")


def read_run(out: Path) -> dict[str, Any]:
    """Return run.json, empty when there is none yet. Raises UsageError when it is damaged."""
    try:
        return dict(json.loads((out / "run.json").read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError:
        raise UsageError(f"{out / 'run.json'} is damaged: remove it, and the same `synth` command continues.") from None


def read_existing_run(out: Path) -> dict[str, Any]:
    """Return run.json of a run folder. Raises UsageError when it has none, or it is damaged."""
    if run := read_run(out):
        return run
    raise UsageError(f"{out} is not a run folder: it has no run.json.")


def read_ended_run(out: Path) -> dict[str, Any]:
    """Return run.json of a run folder with a manifest. Raises UsageError without one, and while a run works in it."""
    run = read_existing_run(out)
    if locks := storage_of(out).live_locks():
        raise UsageError(f"A run works in {out}, under {locks[0]}. Wait for its end.")
    if not (out / MANIFEST).exists():
        raise UsageError(
            f"{out} has no {MANIFEST}: `tts-batch finish {out}` writes the manifest of an interrupted run."
        )
    return run


def write_run(out: Path, facts: dict[str, Any]) -> None:
    """Write run.json atomically."""
    temporary = out / f".run.json.{os.getpid()}.tmp"  # several shards may write it at once
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(facts, file, ensure_ascii=False, indent=2)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(out / "run.json")
    sync_folder(out)
    storage_of(out).publish(out / "run.json")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that affect the audio, without importing them."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def now() -> str:
    """Return the time as ISO 8601, in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def add_to_history(before: Mapping[str, Any], command: str, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the history in `before`, the last run.json, with an entry for the run that has the contents `facts`."""
    summary = facts["summary"] or {}
    entry = {
        "command": command,
        "shard": facts["config"]["shard"],
        **{name: facts[name] for name in ("state", "started", "ended")},
        "data": facts["config"]["data"],
        **{name: summary.get(name) for name in ("rows", "ok", "failed", "pending", "made", "wall_s")},
    }
    same = ("started", "shard", "command")
    earlier = [one for one in before.get("history", []) if any(one.get(name) != entry[name] for name in same)]
    return [*earlier, entry][-MAX_HISTORY:]


def describe_run(config: JobConfig, plan: Plan, summary: Mapping[str, Any] | None, num_kept: int = 0) -> dict[str, Any]:
    """Return the contents of run.json: settings, models, versions and, at the end, the summary as plain values.

    `num_kept`: rows of the manifest that the table does not have.
    """
    return {
        "fingerprint": plan.fingerprint,
        "settings": plan.settings,
        "config": config.model_dump(mode="json") | {"out": storage_of(config.out).shown},
        "working_folder": os.getcwd(),
        "models": [
            {"model": group.model.name, "revision": group.model.revision, "rows": group.num_rows}
            for group in plan.groups
        ],
        "tables": [report.to_dict() for report in plan.tables],
        "versions": versions(),
        "counts": {"rows": plan.num_rows + num_kept, "failed_in_plan": plan.num_failed},
        "summary": summary,
    }
