"""CSV files, unquoted lists and JSON lines: cells stay text, a broken line is one broken row.

Lists and TSV files know no quoting, so that a stray quotation mark swallows nothing. Lines end at "\\n" only (U+2028
inside a text does not end one), except that CSV records may hold line ends inside quotes.
"""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from types import MappingProxyType
from typing import Any

from tts_batch.dataset.cells import kind_of, printable
from tts_batch.dataset.tables import RawRow, TableForm
from tts_batch.dataset.text_files import TextFile, is_undecoded
from tts_batch.errors import UsageError

_SAMPLE_ROWS = 1000
_MAX_FIELD_CHARS = 16 << 20  # a recording as a data: URI fits; a quote left open does not swallow the file
_FORMS = {None: "lines", "\t": "TSV"}


class _TextTable(ABC):
    """What the text formats share."""

    form: TableForm
    types: Mapping[str, Any] = MappingProxyType({})
    audio_columns: frozenset[str] = frozenset()
    _names: tuple[str, ...]  # by position; "" is a column without a name

    def __init__(self, text: TextFile) -> None:
        self.file = text.file
        self._text = text

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(filter(None, self._names))

    def sample(self, names: Collection[str]) -> Mapping[str, Any]:
        found: dict[str, Any] = {}
        for row in islice(self.rows(names), _SAMPLE_ROWS):
            found = {name: value for name, value in row.cells.items() if value not in (None, "")} | found
        return found

    @abstractmethod
    def rows(self, columns: Collection[str]) -> Iterator[RawRow]:
        """Yield the file's rows with these columns."""

    def _row_maker(self, columns: Collection[str]) -> Callable[[int, list[str]], RawRow | None]:
        """Return what makes a line's number and fields a row with the cells of `columns`; None of a blank row."""
        asked = set(columns)
        wanted = [(place, name) for place, name in enumerate(self._names) if name and name in asked]
        num_fields, encoding = len(self._names), self._text.encoding

        def to_row(number: int, fields: list[str]) -> RawRow | None:
            if len(fields) > 1 and not any(map(str.strip, fields)):
                return None
            # A spreadsheet may be wider than its header: separators at the end of a line are no cells.
            if len(fields) != num_fields and (len(fields) < num_fields or any(map(str.strip, fields[num_fields:]))):
                has = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
                return RawRow(number, {}, f"line {number} has {has} where {num_fields} are expected.")
            if any(map(is_undecoded, fields)):
                return RawRow(number, {}, _not_in(encoding, number))
            return RawRow(number, {name: fields[place] for place, name in wanted})

        return to_row


class CsvTable(_TextTable):
    """A file with a header whose fields may be quoted. `num_skipped`: records before the header."""

    def __init__(self, text: TextFile, separator: str, *, num_skipped: int = 0) -> None:
        super().__init__(text)
        self._separator, self._num_skipped = separator, num_skipped
        with self._records() as reader:
            header = _next_record(reader)
            sample = [record for record in islice(iter(lambda: _next_record(reader), None), _SAMPLE_ROWS)
                      if isinstance(record, list)]  # fmt: skip
        if isinstance(header, csv.Error):
            raise UsageError(f"{text.file.name}: the header cannot be read: {printable(str(header))}")
        self._names = checked_header(header or [], text)
        self.form = TableForm("CSV", text.encoding, separator, True, _unnamed(self._names, sample))

    def rows(self, columns: Collection[str]) -> Iterator[RawRow]:
        to_row = self._row_maker(columns)
        with self._records() as reader:
            _next_record(reader)
            while True:
                number = reader.line_num + 1
                record = _next_record(reader)
                if record is None:
                    return
                if isinstance(record, csv.Error):
                    last = f" to {reader.line_num}" if reader.line_num > number else ""
                    yield RawRow(number, {}, f"line {number}{last} is not CSV: {printable(str(record))}")
                elif record and (row := to_row(number, record)) is not None:
                    yield row

    @contextmanager
    def _records(self) -> Iterator[Any]:
        """A csv.reader that is at the header."""
        csv.field_size_limit(max(csv.field_size_limit(), _MAX_FIELD_CHARS))
        with self._text.open() as stream:
            reader = csv.reader(stream, delimiter=self._separator, strict=True)
            for _ in range(self._num_skipped):
                _next_record(reader)
            yield reader


class UnquotedTable(_TextTable):
    """A file of lines split at one character, or with `separator` None not at all.

    `names`: what its fields are; None: the first line says so.
    """

    def __init__(self, text: TextFile, separator: str | None, names: Sequence[str] | None = None) -> None:
        super().__init__(text)
        self._separator = separator
        self._has_header = names is None
        remarks: tuple[str, ...] = ()
        if names is not None:
            self._names = tuple(names)
        else:
            sample = [self._fields(line) for _, line in islice(text.lines(), _SAMPLE_ROWS)]
            self._names = checked_header(sample[0] if sample else [], text)
            remarks = _unnamed(self._names, sample[1:])
        form = _FORMS.get(separator, "list")
        self.form = TableForm(form, text.encoding, separator, self._has_header, remarks)

    def rows(self, columns: Collection[str]) -> Iterator[RawRow]:
        to_row = self._row_maker(columns)
        for number, line in islice(self._text.lines(), int(self._has_header), None):
            if (row := to_row(number, self._fields(line))) is not None:
                yield row

    def _fields(self, line: str) -> list[str]:
        if self._separator is None:
            return [line]
        fields = line.split(self._separator)
        return list(map(_unquoted, fields)) if self._separator == "\t" and '""' in line else fields


class JsonLinesTable(_TextTable):
    """One JSON object a line."""

    def __init__(self, text: TextFile) -> None:
        super().__init__(text)
        self.form = TableForm("JSON lines", text.encoding)
        names: dict[str, None] = {}
        for _, value in islice(self._objects(), _SAMPLE_ROWS):
            if isinstance(value, dict):
                names |= dict.fromkeys(value)
        self._names = tuple(names)

    @property
    def columns(self) -> tuple[str, ...]:
        return self._names

    def rows(self, columns: Collection[str]) -> Iterator[RawRow]:
        """As `Table.rows`, with all keys of each line, since a later line may bring a new one."""
        for number, value in self._objects():
            if isinstance(value, dict):
                yield RawRow(number, value)
            else:
                yield RawRow(number, {}, value)

    def _objects(self) -> Iterator[tuple[int, dict[str, Any] | str]]:
        """Yield (line number, the object or what is wrong with the line)."""
        for number, line in self._text.lines():
            if is_undecoded(line):
                yield number, _not_in(self._text.encoding, number)
                continue
            if number == 1 and line.lstrip().startswith("["):
                raise UsageError(f"{self.file.name} is one JSON array: write one object a line instead.")
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, f"line {number} is not a JSON object: {error}"
                continue
            yield (
                number,
                value if isinstance(value, dict) else (f"line {number} is not a JSON object: it is {kind_of(value)}"),
            )


def checked_header(names: Collection[str], text: TextFile) -> tuple[str, ...]:
    """Return the names of a header without outer spaces. Raises UsageError for two that are equal."""
    name = text.file.name
    if any(map(is_undecoded, names)):
        raise UsageError(f"{name}: the header is not {text.encoding}: give --encoding, as in --encoding cp1252.")
    header = tuple(name.strip() for name in names)
    twice = next((name for name, count in Counter(header).items() if name and count > 1), None)
    if twice is not None:
        raise UsageError(f"{name} has two columns named {printable(twice)!r}: rename one of them.")
    return header


def _unnamed(names: Sequence[str], sample: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Remark on columns without a name that are not empty: they are left out."""
    filled = [
        place
        for place, name in enumerate(names)
        if not name and any(len(fields) > place and fields[place].strip() for fields in sample)
    ]
    return tuple(f"column {place + 1} has no name and is left out" for place in filled)


def _not_in(encoding: str, number: int) -> str:
    hint = "" if encoding != "UTF-8" else ": give --encoding if all of the file is another, as cp1252"
    return f"line {number} is not {encoding}{hint}."


def _unquoted(field: str) -> str:
    """Undo quoting where nothing else explains a field: it is in quotes, and doubles those within."""
    inner = field[1:-1]
    is_quoted = len(field) > 1 and field[0] == field[-1] == '"' and '""' in inner and '"' not in inner.replace('""', "")
    return inner.replace('""', '"') if is_quoted else field


def _next_record(reader: Any) -> list[str] | csv.Error | None:
    """The next record, the error that reading it gave, or None at the end."""
    try:
        return next(reader, None)
    except csv.Error as error:
        return error
