"""The job of a run folder, from its run.json: for commands that are given the folder alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tts_batch.config import JobConfig, build_config
from tts_batch.store.run_json import read_existing_run

_ONCE = ("overwrite", "redo", "shard")
"""What was asked of one run is not asked of the next."""


def recall_job(out: Path, **changes: Any) -> JobConfig:
    """Return the job that last ran in `out`, with `changes`; its paths are found from any working folder.

    Raises UsageError when `out` is not a run folder.
    """
    run = read_existing_run(out)
    options = {name: value for name, value in run["config"].items() if name not in _ONCE}
    there = Path(run["working_folder"])
    options |= {"out": out, "data": [_from(there, path) for path in options["data"]]}
    if options.get("audio_root"):
        options["audio_root"] = _from(there, options["audio_root"])
    if options.get("model") and (there / options["model"]).is_dir():
        options["model"] = _from(there, options["model"])
    return build_config(options | changes)


def _from(folder: Path, path: str) -> str:
    return path if "://" in path else str(folder / path)
