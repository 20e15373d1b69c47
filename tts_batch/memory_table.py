"""Tables that exist only in Python: written as Parquet into a run folder, so that it can resume, or read row by row."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from tts_batch.dataset.audio import to_mono
from tts_batch.dataset.carried import carried, encodable
from tts_batch.dataset.cells import plain_text
from tts_batch.dataset.columns import AMBIGUOUS, is_known, loosely, map_columns
from tts_batch.dataset.files import TableFile
from tts_batch.dataset.notes import Notes
from tts_batch.dataset.tables import RawRow, TableForm
from tts_batch.errors import RowError, UsageError

_NO_TABLE = "A table is a path, a list of dicts, a pyarrow table or a pandas frame with rows, not {}."
_RECORDING = {
    "path": pa.string(),
    "bytes": pa.large_binary(),
    "array": pa.list_(pa.float32()),
    "sampling_rate": pa.int64(),
}


def as_arrow(table: Any, mapping: Mapping[str, str] | None = None) -> pa.Table:
    """Rows as dicts, or anything with an Arrow stream (pyarrow, pandas, polars), as one pyarrow table.

    Frames may also hold what Arrow does not know: paths, recordings, UUIDs, mixed ids. Columns that are neither ours
    nor in `mapping` may hold anything. Raises UsageError for any other table, and for a column of ours whose cells have
    no common type.
    """
    ours = frozenset((mapping or {}).values())
    if hasattr(table, "__arrow_c_stream__"):
        try:
            made = pa.RecordBatchReader.from_stream(table).read_all()
        except Exception as error:  # of many types, by the library: cells that Arrow does not know
            return pa.table(_frame_columns(table, ours, error))
        _refuse_repeated(made.column_names)
        return made
    rows = list(table) if isinstance(table, Iterable) else []
    if not rows or not all(isinstance(row, Mapping) for row in rows):
        raise UsageError(_NO_TABLE.format(_short(table)))
    names = {name: encodable(str(name)) for row in rows for name in row}
    _refuse_repeated(names.values())
    return pa.table({shown: _column(shown, [row.get(name) for row in rows], ours) for name, shown in names.items()})


def _refuse_repeated(names: Iterable[str]) -> None:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UsageError(f"The table has two columns named {twice!r}: rename one of them.")


def _frame_columns(frame: Any, ours: Collection[str], error: Exception) -> dict[str, pa.Array]:
    """The columns of a pandas or polars frame, cell by cell where Arrow does not take them whole."""
    if not hasattr(frame, "columns"):
        raise UsageError(_NO_TABLE.format(_short(frame))) from error
    _refuse_repeated(map(str, frame.columns))
    return {str(name): _series(str(name), frame[name], ours) for name in frame.columns}


def _series(name: str, series: Any, ours: Collection[str]) -> pa.Array:
    if str(series.dtype).casefold() != "object":
        try:
            return pa.array(series)
        except Exception:  # as above
            pass
    return _column(name, [None if _is_missing(cell) else cell for cell in series], ours)


def _is_missing(cell: Any) -> bool:
    """Whether a cell of a frame is its NaN, NaT or NA: what differs from itself, or cannot tell."""
    if cell is None or isinstance(cell, str | bytes | Mapping | Collection) or hasattr(cell, "__array__"):
        return cell is None
    try:
        return bool(cell != cell)  # noqa: PLR0124
    except TypeError:
        return True


def plain_cell(cell: Any) -> Any:
    """A cell as a table could hold it: paths and UUIDs as text, numpy scalars as numbers, recordings as audio structs.

    A recording is (samples, rate) or a decoder of `datasets`; samples may be a numpy array, a tensor or a list.
    """
    if isinstance(cell, os.PathLike):
        return os.fspath(cell)
    if isinstance(cell, UUID):
        return str(cell)
    if isinstance(cell, np.generic):
        return cell.item()
    if isinstance(cell, bytearray | memoryview):
        return bytes(cell)
    if hasattr(cell, "detach") and hasattr(cell, "cpu"):
        return _numbers(cell)
    if isinstance(cell, tuple) and len(cell) == 2:
        samples, rate = cell if isinstance(cell[1], int | float | np.number) else cell[::-1]  # as scipy reads them
        if isinstance(rate, int | float | np.number):
            return {"array": _numbers(samples), "sampling_rate": plain_cell(rate)}
    if isinstance(cell, Mapping) and cell.get("array") is not None:
        return {**cell, "array": _numbers(cell["array"]), "sampling_rate": plain_cell(cell.get("sampling_rate"))}
    if hasattr(cell, "get_all_samples"):  # the decoder that `datasets` gives for an audio column
        samples = cell.get_all_samples()
        return {"array": _numbers(samples.data), "sampling_rate": int(samples.sample_rate)}
    return cell


def _numbers(samples: Any) -> Any:
    """Samples as a numpy array, also those of a tensor on another device or of a type that numpy does not know."""
    if hasattr(samples, "detach"):
        samples = samples.detach().cpu()
        samples = samples.float() if samples.is_floating_point() else samples
        return samples.numpy()
    return np.asarray(samples) if hasattr(samples, "__array__") else samples


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
        return tuple(str(name) for row in self._first for name in _checked(row))

    def sample(self, names: Collection[str]) -> Mapping[str, Any]:
        cells = {str(name): cell for row in self._first for name, cell in _checked(row).items()}
        return {name: cells[name] for name in names if cells.get(name) is not None}

    def rows(self, columns: Collection[str]) -> Iterator[RawRow]:
        """Yield every row whole, since a later one may bring a new column."""
        for number, row in enumerate(chain(self._first, self._rows), start=1):
            yield RawRow(number, {str(name): plain_cell(cell) for name, cell in _checked(row).items()})


def _checked(row: Any) -> Mapping[Any, Any]:
    if not isinstance(row, Mapping):
        raise UsageError(f"A row is a dict of columns, as {{'text': 'Hello.'}}, not {_short(row)}.")
    return row


def _column(name: str, cells: list[Any], ours: Collection[str]) -> pa.Array:
    """Return cells as one Arrow array: as they are, or else all as recordings, or else all as text.

    A column that is neither known nor among `ours` is carried through whatever it holds.
    """
    plain = [plain_cell(cell) for cell in cells]
    is_recording = any(isinstance(cell, Mapping) and "array" in cell for cell in plain)
    error: Exception | None = None
    for convert in (_as_recordings,) if is_recording else (pa.array, _as_recordings, _as_texts):
        try:
            return convert(plain)
        except RowError as row_error:
            raise UsageError(f"The column {name!r} holds a recording that cannot be used: {row_error}") from row_error
        except Exception as found:  # Arrow's, and those of the values themselves
            error = error or found
    if name not in ours and not is_known(name):
        with suppress(TypeError, ValueError, RecursionError):
            return pa.array([None if cell is None else _shown(cell) for cell in plain], pa.string())
    raise UsageError(f"The column {name!r} has no type that a table can have: {error}") from error


def _as_recordings(cells: list[Any]) -> pa.Array:
    found = [None if cell is None else _recording(cell) for cell in cells]
    used = {name for cell in found if cell for name, value in cell.items() if value is not None}
    return pa.array(found, pa.struct([(name, kind) for name, kind in _RECORDING.items() if name in used]))


def _recording(cell: Any) -> dict[str, Any]:
    if isinstance(cell, str):
        return {"path": cell}
    if isinstance(cell, bytes | bytearray):
        return {"bytes": bytes(cell)}
    if isinstance(cell, Mapping) and cell.keys() & {"path", "bytes", "array"}:
        found = {name: cell.get(name) for name in ("path", "bytes", "array", "sampling_rate")}
        found["path"] = plain_cell(found["path"])
        if found["array"] is not None:  # types and channels may differ from row to row, and a column has one type
            found["array"] = to_mono(np.asarray(found["array"]))
        return found
    raise TypeError(f"{type(cell).__name__} is not a path, bytes or a recording")


def _as_texts(cells: list[Any]) -> pa.Array:
    """Ids of several types, say: each as it would be read alone."""
    return pa.array([None if cell is None else _text(cell) for cell in cells], pa.string())


def _shown(cell: Any) -> str:
    """A carried cell as text. Raises TypeError for an object without a text that is the same in the next process."""
    if isinstance(cell, Mapping | list | tuple | np.ndarray):
        return encodable(json.dumps(carried(cell.tolist() if isinstance(cell, np.ndarray) else cell), default=_shown))
    shown = str(cell)
    if " at 0x" in shown and not isinstance(cell, str):  # an address in memory
        raise TypeError(f"{type(cell).__name__} has no text")
    return encodable(shown)


def _text(cell: Any) -> str:
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53:
        cell = int(cell)
    text = cell if isinstance(cell, str) else plain_text(cell)
    if text is None and isinstance(cell, bool | float | Decimal):
        text = str(cell)
    if text is None:
        raise TypeError(f"{type(cell).__name__} beside other types")
    return text


def write_table(table: pa.Table, folder: Path, mapping: Mapping[str, str]) -> Path:
    """Write `table` into `folder` under a name made from its content, and return the path.

    Relative paths of recordings start at the working folder here; in the file they are absolute, since a table's
    paths start at its own folder.
    """
    table = _with_absolute_recordings(table, mapping)
    sink = pa.BufferOutputStream()
    try:
        pq.write_table(table, sink)
    except pa.ArrowException as error:
        raise UsageError(f"The table has a column of a type that Parquet does not have: {error}") from error
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
    unclear = [name for name in names if loosely(name) in AMBIGUOUS]
    first = {name: next((cell.as_py() for cell in table[name] if cell.is_valid), None) for name in unclear}
    columns = map_columns(names, mapping, sample=first, strict=False, table="the table", notes=Notes())
    name = columns.ours.get("ref_audio")
    if name is None:
        return table
    return table.set_column(names.index(name), name, _each_path(table[name], _absolute))


def _each_path(column: pa.ChunkedArray, change: Callable[[str | None], str | None]) -> pa.ChunkedArray:
    """Return `column` with `change` made to its paths, where it holds any: texts, or structs with a path."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.chunked_array([[change(cell) for cell in column.to_pylist()]], kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        of_kind = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
        chunks = []
        for chunk in column.chunks:
            values = _each_path(pa.chunked_array([chunk.values]), change).combine_chunks()
            chunks.append(
                of_kind.from_arrays(chunk.offsets, values, mask=chunk.is_null() if chunk.null_count else None)
            )
        return pa.chunked_array(chunks, pa.large_list(values.type) if of_kind is pa.LargeListArray else None)
    if not pa.types.is_struct(kind) or kind.get_field_index("path") < 0:
        return column
    chunks = []
    for chunk in column.chunks:
        fields = [
            _each_path(pa.chunked_array([chunk.field(place)]), change).combine_chunks()
            if field.name == "path"
            else chunk.field(place)
            for place, field in enumerate(kind)
        ]
        chunks.append(pa.StructArray.from_arrays(fields, fields=list(kind), mask=chunk.is_null()))
    return pa.chunked_array(chunks, kind)


def _absolute(cell: str | None) -> str | None:
    if not cell or not cell.strip() or "://" in cell or cell.startswith("data:"):
        return cell
    return os.path.abspath(os.path.expanduser(cell.strip()))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "…"
