"""Planning small real tables in tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from tts_batch.config import JobConfig
from tts_batch.plan.planner import Plan, PlannedRow, iter_planned, make_plan


class Planner:
    """Plans rows given as dicts, from a JSON lines file in the test's folder, which holds a recording `ref.wav`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        t = np.arange(4 * 24_000) / 24_000
        soundfile.write(folder / "ref.wav", 0.3 * np.sin(2 * np.pi * 180 * t), 24_000)

    def config(self, *rows: dict[str, Any], **options: Any) -> JobConfig:
        table = self.folder / "t.jsonl"
        if rows:
            table.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return JobConfig(data=(str(table),), out=self.folder / "out", **{"model": "tiny-random", **options})

    def plan(self, *rows: dict[str, Any], **options: Any) -> Plan:
        return make_plan(self.config(*rows, **options))

    def rows(self, *rows: dict[str, Any], **options: Any) -> list[PlannedRow]:
        config = self.config(*rows, **options)
        return list(iter_planned(config, make_plan(config)))


def reasons(planned: list[PlannedRow]) -> list[str | None]:
    """The failure reasons of planned rows, None for good ones."""
    return [item.row.failure.reason if item.row.failure else None for item in planned]
