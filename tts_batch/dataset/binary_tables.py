"""Parquet and Arrow files in small batches, with only the columns asked for.

Audio columns make this delicate: a row group may hold more than 2 GiB, which Arrow cannot convert in one piece, so
batches with recordings stay small and nothing is ever concatenated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from tts_batch.dataset.cells import printable
from tts_batch.dataset.files import TableFile, os_errors_as_usage
from tts_batch.dataset.sniff import UNKNOWN, sniff
from tts_batch.dataset.tables import RawRow, TableForm
from tts_batch.errors import UsageError

_PLAIN_BATCH = 1024
_AUDIO_BATCH = 16  # rows: 16 recordings of 64 MiB still fit one Arrow array
_SAMPLE_ROWS = 64


class _BinaryTable(ABC):
    """What Parquet and Arrow files share. A subclass sets `_schema` and yields record batches."""

    file: TableFile
    form: TableForm
    _schema: pa.Schema

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._schema.names)

    @cached_property
    def types(self) -> Mapping[str, pa.DataType]:
        return dict(zip(self._schema.names, self._schema.types, strict=True))

    @cached_property
    def audio_columns(self) -> frozenset[str]:
        return frozenset(field.name for field in self._schema if _holds_audio(field.type))

    def sample(self, names: Collection[str]) -> Mapping[str, Any]:
        found: dict[str, Any] = {}
        for row in self.rows(names):
            found = {name: value for name, value in row.cells.items() if value is not None} | found
            if len(found) == len(names) or row.number >= _SAMPLE_ROWS:
                break
        return found

    def rows(self, columns: Collection[str]) -> Iterator[RawRow]:
        wanted = set(columns)
        own = [name for name in self._schema.names if name in wanted]
        heavy = any(_holds_audio(self._schema.field(name).type) for name in own)
        number = 0
        for batch in self._readable_batches(own, _AUDIO_BATCH if heavy else _PLAIN_BATCH):
            cells = [_cells(batch.column(name)) for name in own]
            for i in range(batch.num_rows):
                number += 1
                yield RawRow(number, {name: values[i] for name, values in zip(own, cells, strict=True)})

    def _readable_batches(self, columns: list[str], batch_size: int) -> Iterator[pa.RecordBatch]:
        num_rows = 0
        try:
            for batch in self._batches(columns, batch_size):
                yield batch
                num_rows += batch.num_rows
        except self.file.read_errors as error:
            raise UsageError(f"{self.file.name} is damaged after row {num_rows}: {error}") from error

    @abstractmethod
    def _batches(self, columns: list[str], batch_size: int) -> Iterator[pa.RecordBatch]:
        """Yield the file's batches with these columns."""


class ParquetTable(_BinaryTable):
    """A Parquet file."""

    form = TableForm("Parquet")

    def __init__(self, file: TableFile) -> None:
        self.file = file
        try:
            with self._open() as parquet:
                self._schema = parquet.schema_arrow
        except self.file.read_errors as error:
            raise _unreadable(file, "Parquet", error) from error
        _check_names(self._schema, file)

    def _open(self) -> pq.ParquetFile:
        return pq.ParquetFile(self.file.path if self.file.is_local else self.file.open())

    def _batches(self, columns: list[str], batch_size: int) -> Iterator[pa.RecordBatch]:
        with self._open() as parquet:
            for group in range(parquet.num_row_groups):  # asked for all, Arrow holds what it has read to the end
                yield from parquet.iter_batches(batch_size, [group], columns, use_threads=False)


class ArrowTable(_BinaryTable):
    """An Arrow IPC stream or file, as `datasets` saves them."""

    form = TableForm("Arrow IPC")

    def __init__(self, file: TableFile) -> None:
        self.file = file
        try:
            with file.open() as source:
                self._schema = self._read(source).schema
        except self.file.read_errors as error:
            raise _unreadable(file, "Arrow IPC", error) from error
        _check_names(self._schema, file)

    @staticmethod
    def _read(source: Any) -> Any:
        try:
            return pa.ipc.open_stream(source)
        except pa.ArrowInvalid:
            source.seek(0)
            return pa.ipc.open_file(source)

    def _batches(self, columns: list[str], batch_size: int) -> Iterator[pa.RecordBatch]:
        with self.file.open() as source:
            reader = self._read(source)
            streamed = hasattr(reader, "read_next_batch")
            for batch in reader if streamed else map(reader.get_batch, range(reader.num_record_batches)):
                wanted = batch.select(columns)
                for start in range(0, batch.num_rows, batch_size):
                    yield wanted.slice(start, batch_size)


def _unreadable(file: TableFile, form: str, error: Exception) -> UsageError:
    """Return the error for a file that cannot be opened, which often is no table at all: a pointer, a web page."""
    with os_errors_as_usage(file.name, is_local=file.is_local), file.open() as source:
        found = sniff(source.read(512))
    is_other = found != UNKNOWN and form.removesuffix(" IPC") not in found.name
    why = f"it is {found}" if is_other else str(error)
    return UsageError(f"{printable(file.name)} cannot be read as {form}: {printable(why)}")


def _check_names(schema: pa.Schema, file: TableFile) -> None:
    twice = next((name for name, count in Counter(schema.names).items() if count > 1), None)
    if twice is not None:
        raise UsageError(f"{file.name} has two columns named {twice!r}: rename one of them.")


def _holds_binary(kind: pa.DataType) -> bool:
    """Whether `kind` is, or contains, raw bytes."""
    is_bytes = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    if any(test(kind) for test in is_bytes):
        return True
    if pa.types.is_dictionary(kind):
        return _holds_binary(kind.value_type)
    return any(_holds_binary(kind.field(i).type) for i in range(kind.num_fields))


def _holds_samples(kind: pa.DataType) -> bool:
    """Whether `kind` is, or contains, a struct of samples and their rate."""
    if pa.types.is_struct(kind) and {"array", "sampling_rate"} <= {field.name for field in kind}:
        return True
    return any(_holds_samples(kind.field(i).type) for i in range(kind.num_fields))


def _holds_audio(kind: pa.DataType) -> bool:
    """Whether a column of `kind` is recordings rather than facts about the row: too heavy to be carried through."""
    return _holds_binary(kind) or _holds_samples(kind)


def _cells(column: pa.Array) -> list[Any]:
    kind = column.type
    if _holds_samples(kind):
        return [_value(scalar) for scalar in column]
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        column = column.cast(pa.timestamp("us", kind.tz), safe=False)  # Python's datetime knows no nanoseconds
    try:
        values: list[Any] = column.to_pylist()
    except Exception:  # of many types: dates out of range, unknown zones, text that is not UTF-8
        return [_readable(scalar) for scalar in column]
    if pa.types.is_interval(kind):
        return [None if value is None else _interval(value) for value in values]
    return values


def _readable(scalar: pa.Scalar) -> Any:
    """As `as_py`, with text for what Python cannot hold, and bytes for text that is not UTF-8."""
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.StructScalar):
        return {name: _readable(value) for name, value in scalar.items()}
    if isinstance(scalar, pa.ListScalar):
        return [_readable(item) for item in scalar.values]
    try:
        return scalar.as_py()
    except Exception:
        return _shown(scalar)


def _shown(scalar: pa.Scalar) -> Any:
    kind = scalar.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        unit: Any = kind.unit if pa.types.is_timestamp(kind) else "D" if pa.types.is_date32(kind) else "ms"
        return f"{np.datetime64(scalar.value, unit)}{'Z' if getattr(kind, 'tz', None) else ''}"
    if pa.types.is_duration(kind):
        return f"{scalar.value} {kind.unit}"
    if isinstance(scalar, pa.StringScalar):
        return scalar.as_buffer().to_pybytes()
    if isinstance(scalar, pa.DictionaryScalar | pa.ExtensionScalar):
        return _readable(scalar.value)
    return str(scalar)


def _interval(value: Any) -> str:
    return f"{value.months} months {value.days} days {value.nanoseconds} ns"


def _value(scalar: pa.Scalar) -> Any:
    """As `as_py`, but numbers in lists stay numpy arrays: their type says how samples are scaled."""
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.StructScalar):
        return {name: _value(value) for name, value in scalar.items()}
    if not isinstance(scalar, pa.ListScalar):
        return scalar.as_py()
    values = scalar.values
    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return values.to_numpy(zero_copy_only=False)
    items = [_value(item) for item in values]
    if items and all(isinstance(item, np.ndarray) for item in items) and len({item.shape for item in items}) == 1:
        return np.stack(items)  # channels
    return items
