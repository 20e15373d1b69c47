"""CSV, TSV, pipe lists and JSON lines: cells stay text, a broken line is one broken row.

TSV files and pipe lists know no quoting, so that a stray quotation mark swallows nothing. Lines end at "\\n" only
(U+2028 inside a text does not end one), except that CSV records may hold line ends inside quotes.
"""

from __future__ import annotations

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from types import MappingProxyType
from typing import Any

from tts_batch.dataset.cells import kind_of
from tts_batch.dataset.columns import is_known
from tts_batch.dataset.files import TableFile, os_errors_as_usage
from tts_batch.dataset.tables import RawRow
from tts_batch.errors import UsageError

# Lists without a header, by the number of their fields. The third LJSpeech field is the text as it is spoken.
_PIPE_COLUMNS: dict[int, tuple[str, ...]] = {
    2: ("id", "text"),
    3: ("id", "written_text", "text"),
    4: ("id", "ref_text", "ref_audio", "text"),  # seed-tts
    5: ("id", "ref_text", "ref_audio", "text", "wav"),
}
_SAMPLE_ROWS = 1000
_MAX_FIELD_CHARS = 16 << 20  # a recording as a data: URI fits; a quote left open does not swallow the file
_BOM = b"\xef\xbb\xbf"


class _TextTable(ABC):
    """What the text formats share."""

    types: Mapping[str, Any] = MappingProxyType({})
    audio_columns: frozenset[str] = frozenset()
    _names: tuple[str, ...]  # the file's own columns

    def __init__(self, file: TableFile) -> None:
        self.file = file

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self._names, *(name for name, _ in self.file.partitions if name not in self._names))

    def sample(self, names: Collection[str]) -> Mapping[str, Any]:
        found: dict[str, Any] = {}
        for row in islice(self.rows(names), _SAMPLE_ROWS):
            found = {name: value for name, value in row.cells.items() if value not in (None, "")} | found
        return found

    @abstractmethod
    def rows(self, columns: Collection[str]) -> Iterator[RawRow]:
        """Yield the file's rows with these columns."""

    def _row_maker(self, columns: Collection[str]) -> Callable[[int, list[str]], RawRow]:
        """Return what makes a line's number and fields a row with the cells of `columns`."""
        constant = {name: value for name, value in self.file.partitions if name in columns}
        wanted = [(i, name) for i, name in enumerate(self._names) if name in columns]

        def to_row(number: int, fields: list[str]) -> RawRow:
            if len(fields) != len(self._names):
                has = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
                return RawRow(number, {}, f"line {number} has {has} where {len(self._names)} are expected.")
            if any(not field.isascii() and _has_undecoded(field) for field in fields):
                return RawRow(number, {}, f"line {number} is not UTF-8.")
            return RawRow(number, {name: fields[i] for i, name in wanted} | constant)

        return to_row


class CsvTable(_TextTable):
    """A comma-separated file with a header."""

    def __init__(self, file: TableFile) -> None:
        super().__init__(file)
        with _csv_reader(file) as reader:
            header = _next_record(reader)
        if isinstance(header, csv.Error):
            raise UsageError(f"{file.name}: the header cannot be read: {header}")
        self._names = _checked_header(header or [], file)

    def rows(self, columns: Collection[str]) -> Iterator[RawRow]:
        to_row = self._row_maker(columns)
        with _csv_reader(self.file) as reader:
            _next_record(reader)
            while True:
                number = reader.line_num + 1
                record = _next_record(reader)
                if record is None:
                    return
                if isinstance(record, csv.Error):
                    last = f" to {reader.line_num}" if reader.line_num > number else ""
                    yield RawRow(number, {}, f"line {number}{last} is not CSV: {record}")
                elif record:
                    yield to_row(number, record)


class UnquotedTable(_TextTable):
    """A file of lines split at one character: TSV with a header, or a pipe list with or without one."""

    def __init__(self, file: TableFile, separator: str) -> None:
        super().__init__(file)
        self._separator = separator
        first = next((line for _, line in _lines(file) if isinstance(line, str)), "")
        fields = first.split(separator)
        self._has_header = separator == "\t" or all(is_known(field) for field in fields)
        if not self._has_header and len(fields) not in _PIPE_COLUMNS:
            raise UsageError(
                f"{file.name}: the first line is {'|'.join(fields)[:80]!r}; a list has id|text or id|text|text."
            )
        self._names = _checked_header(fields if self._has_header else _PIPE_COLUMNS[len(fields)], file)

    def rows(self, columns: Collection[str]) -> Iterator[RawRow]:
        to_row = self._row_maker(columns)
        lines = _lines(self.file)
        if self._has_header:
            next(lines)
        for number, line in lines:
            if isinstance(line, UnicodeDecodeError):
                yield RawRow(number, {}, f"line {number} is not UTF-8: {line.reason}")
            else:
                yield to_row(number, line.split(self._separator))


class JsonLinesTable(_TextTable):
    """One JSON object a line."""

    def __init__(self, file: TableFile) -> None:
        super().__init__(file)
        names: dict[str, None] = {}
        for _, value in islice(self._objects(), _SAMPLE_ROWS):
            if isinstance(value, dict):
                names |= dict.fromkeys(value)
        self._names = tuple(names)

    def rows(self, columns: Collection[str]) -> Iterator[RawRow]:
        """As `Table.rows`, with all keys of each line, since a later line may bring a new one."""
        constant = dict(self.file.partitions)
        for number, value in self._objects():
            if isinstance(value, dict):
                yield RawRow(number, constant | value if constant else value)
            else:
                yield RawRow(number, {}, f"line {number} is not a JSON object: {value}")

    def _objects(self) -> Iterator[tuple[int, dict[str, Any] | str]]:
        """Yield (line number, the object or what is wrong with the line)."""
        for number, line in _lines(self.file):
            if isinstance(line, UnicodeDecodeError):
                yield number, f"it is not UTF-8 ({line.reason})"
                continue
            if number == 1 and line.lstrip().startswith("["):
                raise UsageError(f"{self.file.name} is one JSON array: write one object a line instead.")
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, str(error)
                continue
            yield number, value if isinstance(value, dict) else f"it is {kind_of(value)}"


def is_pipe_list(file: TableFile) -> bool:
    """Whether a .csv, .txt or .lst file is a list split at "|": its first line has one and is no CSV header."""
    if file.suffix != ".csv":
        return True
    first = next((line for _, line in _lines(file) if isinstance(line, str)), "")
    return "|" in first and not any(is_known(name) for name in first.split(","))


def _lines(file: TableFile) -> Iterator[tuple[int, str | UnicodeDecodeError]]:
    """Yield (number from 1, the decoded line without its end), skipping blank lines."""
    with os_errors_as_usage(file.name), file.open() as source:
        for number, raw in enumerate(source, start=1):
            line = raw.removeprefix(_BOM) if number == 1 else raw
            line = line.removesuffix(b"\n").removesuffix(b"\r")
            if not line.strip(b" "):
                continue
            try:
                yield number, line.decode("utf-8")
            except UnicodeDecodeError as error:
                yield number, error


def _has_undecoded(field: str) -> bool:
    return any("\udc80" <= char <= "\udcff" for char in field)


def _checked_header(names: Collection[str], file: TableFile) -> tuple[str, ...]:
    header = tuple(name.strip() for name in names)
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{file.name} has two columns named {twice!r}: rename one of them.")
    return header


@contextmanager
def _csv_reader(file: TableFile) -> Iterator[Any]:
    """A csv.reader over `file`. Undecodable bytes come through as surrogates, to be found row by row."""
    csv.field_size_limit(max(csv.field_size_limit(), _MAX_FIELD_CHARS))
    with (
        os_errors_as_usage(file.name),
        io.TextIOWrapper(file.open(), encoding="utf-8-sig", errors="surrogateescape", newline="") as stream,
    ):
        yield csv.reader(stream, strict=True)


def _next_record(reader: Any) -> list[str] | csv.Error | None:
    """The next record, the error that reading it gave, or None at the end."""
    try:
        return next(reader, None)
    except csv.Error as error:
        return error
