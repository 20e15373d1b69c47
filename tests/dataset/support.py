"""Reading small real tables in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tts_batch.config import JobConfig
from tts_batch.dataset.notes import Notes
from tts_batch.dataset.rows import read_rows
from tts_batch.records import Row


class ReadRows:
    """Reads tables of the test's folder; `notes` and `reports` are those of the last reading."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self.reports: list[str] = []

    def __call__(self, *names: str, **options: Any) -> list[Row]:
        notes = Notes()
        data = tuple(name if "://" in name else str(self.folder / name) for name in names)
        rows = list(read_rows(JobConfig(data=data, out=self.folder / "out", **options), notes))
        self.notes = notes.sentences()
        self.reports = list(map(str, notes.reports()))
        return rows

    def written(self, name: str, content: str | bytes, **options: Any) -> list[Row]:
        data = content.encode() if isinstance(content, str) else content
        (self.folder / name).write_bytes(data)
        return self(name, **options)


def reasons(rows: list[Row]) -> list[str | None]:
    """The failure reasons of rows, None for good ones."""
    return [row.failure.reason if row.failure else None for row in rows]
