"""Runs to export, and what to compare of exports."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.run.support import ROOT, make_config, make_rows, read_manifest
from tts_batch.run.job import run_job

MISLEADING_IDS = ("train_1", "test_2", "a", "a.b.c", "../x/y", "0007", "eval-3", "Ünïcode 名", "x" * 300)


def misleading_rows(count: int) -> list[dict[str, Any]]:
    """Rows with ids and columns that loaders take for something else; one has no text."""
    rows = make_rows(count)
    for row, row_id in zip(rows, MISLEADING_IDS, strict=False):
        row["id"] = row_id
    rows[9]["text"] = ""
    rows[3]["text"] = 'He said | "go"\u2028now,\nNA'
    for number, row in enumerate(rows):
        row |= {"note": number if number > 6 else None, "tags": ["x"] * (number % 3), "my_file_name": "q.wav"}
        row |= {"day": "2020-01-01", "code": "0007"}
    return rows


def make_run(
    folder: Path, rows: int | Iterable[Mapping[str, Any]], faults: Mapping[str, str] | None = None, **options: Any
) -> Path:
    """Make the run folder `folder`/run with the fake engine in a real worker."""
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)  # so that the worker finds tests.fake_engine
        patch.setenv("FAKE_ENGINE", json.dumps({"faults": dict(faults or {})}))
        config = make_config(folder, rows, out=folder / "run", **options)
        run_job(config)
    return config.out


def ok_rows(run: Path) -> list[dict[str, Any]]:
    return [row for row in read_manifest(run) if row["status"] == "ok"]


def tree(folder: Path) -> dict[str, str]:
    """Every file of an export, by the hash of its bytes."""
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in _files(folder)}


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    """Which file each is, and when it was last written."""
    found = {name: (folder / name).stat() for name in _files(folder)}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in found.items()}


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
