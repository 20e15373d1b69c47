"""Tables that exist only in Python: written as Parquet into a run folder, so that it can resume, or read row by row."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from tts_batch.dataset.columns import map_columns
from tts_batch.dataset.files import TableFile
from tts_batch.dataset.notes import Notes
from tts_batch.dataset.tables import RawRow, TableForm
from tts_batch.errors import UsageError


def as_arrow(table: Any) -> pa.Table:
    """Rows as dicts, or anything with an Arrow stream (pyarrow, pandas, polars), as one pyarrow table.

    Raises UsageError for anything else, and for a column whose cells have no common type.
    """
    if hasattr(table, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(table).read_all()
    rows = list(table) if isinstance(table, Iterable) else []
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise UsageError(
            f"A table is a path, a list of dicts, a pyarrow table or a pandas frame with rows, not {_short(table)}."
        )
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _column(name, [plain_cell(row.get(name)) for row in rows]) for name in names})


def plain_cell(cell: Any) -> Any:
    """A cell as a table could hold it: paths as text, numpy scalars as numbers, (samples, rate) as an audio struct."""
    if isinstance(cell, os.PathLike):
        return os.fspath(cell)
    if isinstance(cell, np.generic):
        return cell.item()
    if isinstance(cell, tuple) and len(cell) == 2 and isinstance(cell[1], int | float | np.number):
        return {"array": cell[0], "sampling_rate": plain_cell(cell[1])}
    return cell


class RowsTable:
    """Rows that arrive one by one, as a table to be read once. Relative paths start at the working folder."""

    form = TableForm("rows")
    types: Mapping[str, Any] = MappingProxyType({})
    audio_columns: frozenset[str] = frozenset()

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self.file = TableFile(os.path.abspath("rows"), "rows", LocalFileSystem())
        self._rows = iter(rows)
        self._first = list(islice(self._rows, 1))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for row in self._first for name in row)

    def sample(self, names: Collection[str]) -> Mapping[str, Any]:
        return {name: row[name] for row in self._first for name in names if row.get(name) is not None}

    def rows(self, columns: Collection[str]) -> Iterator[RawRow]:
        """Yield every row whole, since a later one may bring a new column."""
        for number, row in enumerate(chain(self._first, self._rows), start=1):
            yield RawRow(number, {name: plain_cell(cell) for name, cell in row.items()})


def _column(name: str, cells: list[Any]) -> pa.Array:
    try:
        return pa.array(cells)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UsageError(f"The column {name!r} mixes kinds of values: {error}") from error


def write_table(table: pa.Table, folder: Path, mapping: Mapping[str, str]) -> Path:
    """Write `table` into `folder` under a name made from its content, and return the path.

    Relative paths of recordings start at the working folder here; in the file they are absolute, since a table's
    paths start at its own folder.
    """
    table = _with_absolute_recordings(table, mapping)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    content = sink.getvalue()
    path = folder / f"rows-{hashlib.sha256(content).hexdigest()[:12]}.parquet"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}.tmp")
        aside.write_bytes(content)
        aside.rename(path)
    return path


def _with_absolute_recordings(table: pa.Table, mapping: Mapping[str, str]) -> pa.Table:
    names = table.column_names
    first = {name: next((cell.as_py() for cell in table[name] if cell.is_valid), None) for name in names}
    columns = map_columns(names, mapping, sample=first, strict=False, table="the table", notes=Notes())
    name = columns.ours.get("ref_audio")
    if name is None or not (pa.types.is_string(table[name].type) or pa.types.is_large_string(table[name].type)):
        return table
    cells = [_absolute(cell) for cell in table[name].to_pylist()]
    return table.set_column(names.index(name), name, pa.array(cells, table[name].type))


def _absolute(cell: str | None) -> str | None:
    if not cell or not cell.strip() or "://" in cell or cell.startswith("data:"):
        return cell
    return os.path.abspath(os.path.expanduser(cell.strip()))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"
