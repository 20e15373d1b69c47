"""The planned rows of a run, kept on disk while they are dispatched, so that the manifest need not plan them again."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Any

from tts_batch.plan.rows import PlannedPiece, PlannedRow
from tts_batch.records import Failure, RefAudio, Row

BATCH_ROWS = 256  # pickled together: what they share is written once
_ROW = [field.name for field in fields(Row) if field.name not in ("ref_audio", "failure")]
_PLAN = ("reference_key", "take", "seed", "fingerprint")
# As plain values: pickle takes ten times as long for frozen dataclasses with slots.
_row_values, _plan_values = attrgetter(*_ROW), attrgetter(*_PLAN)
_piece_values = attrgetter(*(field.name for field in fields(PlannedPiece)))


class PlanSpool:
    """A file without a name in `folder`. Rows are kept as the manifest needs them: recordings by their label alone."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (it is closed by `close`)
        self._batch: list[tuple[Any, ...]] = []
        self._is_whole = True  # so far
        self._is_complete = False

    def watch(self, rows: Iterable[PlannedRow]) -> Iterator[PlannedRow]:
        """Yield rows, and keep them. Rows that no file can hold are left to be planned again."""
        for row in rows:
            if self._is_whole:
                self._keep(row)
            yield row
        if self._is_whole:
            self._write()
        self._is_complete = self._is_whole

    def rows(self) -> Iterator[PlannedRow] | None:
        """The rows that were watched, from the first one; None when they are not all here."""
        return self._read() if self._is_complete else None

    def close(self) -> None:
        """Give the room on the disk back."""
        self._is_whole = self._is_complete = False
        self._batch.clear()
        self._file.close()

    def _keep(self, planned: PlannedRow) -> None:
        self._batch.append(_values(planned))
        if len(self._batch) >= BATCH_ROWS:
            self._write()

    def _write(self) -> None:
        try:
            pickle.dump(self._batch, self._file, protocol=pickle.HIGHEST_PROTOCOL)
            self._batch = []
        except Exception:  # a full disk, or a value of the input that cannot be pickled
            self.close()

    def _read(self) -> Iterator[PlannedRow]:
        size = self._file.seek(0, 2)
        position = 0
        while position < size:
            self._file.seek(position)
            rows = pickle.load(self._file)
            position = self._file.tell()
            yield from map(_planned_row, rows)


def _values(planned: PlannedRow) -> tuple[Any, ...]:
    row = planned.row
    label = None if row.ref_audio is None else row.ref_audio.label
    failure = None if row.failure is None else (row.failure.reason, row.failure.message)
    return _row_values(row), label, failure, _plan_values(planned), [*map(_piece_values, planned.pieces)]


def _planned_row(values: tuple[Any, ...]) -> PlannedRow:
    row, label, failure, plan, pieces = values
    return PlannedRow(
        Row(
            **dict(zip(_ROW, row, strict=True)),
            ref_audio=None if label is None else RefAudio(label=label),
            failure=None if failure is None else Failure(*failure),
        ),
        pieces=tuple(PlannedPiece(*piece) for piece in pieces),
        **dict(zip(_PLAN, plan, strict=True)),
    )
