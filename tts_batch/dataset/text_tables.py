"""CSV files and unquoted lists: cells stay text, a broken line is one broken row.

Lists and TSV files know no quoting, so that a stray quotation mark swallows nothing. Lines end at "\\n" only (U+2028
inside a text does not end one), except that CSV records may hold line ends inside quotes.
"""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import dropwhile, islice
from types import MappingProxyType
from typing import Any

from tts_batch.dataset.cells import printable
from tts_batch.dataset.tables import RawRow, TableForm
from tts_batch.dataset.text_files import TextFile, is_undecoded
from tts_batch.errors import UsageError

SAMPLE_ROWS = 1000
_MAX_FIELD_CHARS = 16 << 20  # a recording as a data: URI fits; a quote left open does not swallow the file
_UNSEEN = "\ufeff\u200b\u200c\u200d\u2060"  # a mark of the encoding, and what web pages put between words
_FORMS = {None: "lines", "\t": "TSV"}


class TextTable(ABC):
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
        for row in islice(self.rows(names), SAMPLE_ROWS):
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
                return RawRow(number, {}, not_in(encoding, f"line {number}"))
            return RawRow(number, {name: fields[place] for place, name in wanted})

        return to_row


class CsvTable(TextTable):
    """A file whose fields may be quoted.

    `names`: what its fields are; None: the first record that is not blank says so. `num_skipped`: records before that.
    """

    def __init__(
        self, text: TextFile, separator: str, names: Sequence[str] | None = None, *, num_skipped: int = 0
    ) -> None:
        super().__init__(text)
        self._separator, self._num_skipped, self._has_header = separator, num_skipped, names is None
        with self._records() as (reader, header):
            sample = [record for record in islice(iter(lambda: _next_record(reader), None), SAMPLE_ROWS)
                      if isinstance(record, list)]  # fmt: skip
        if isinstance(header, csv.Error):
            raise UsageError(f"{text.file.name}: the header cannot be read: {printable(str(header))}")
        self._names = checked_header(header, text) if names is None else tuple(names)
        remarks = _unnamed(self._names, sample) if names is None else ()
        self.form = TableForm("CSV", text.encoding, separator, self._has_header, remarks)

    def rows(self, columns: Collection[str]) -> Iterator[RawRow]:
        to_row = self._row_maker(columns)
        with self._records() as (reader, _):
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
    def _records(self) -> Iterator[tuple[Any, list[str] | csv.Error]]:
        """A csv.reader that is behind the header, and the header."""
        csv.field_size_limit(max(csv.field_size_limit(), _MAX_FIELD_CHARS))
        header: list[str] | csv.Error | None = []
        with self._text.open() as stream:
            reader = csv.reader(self._text.limited(stream), delimiter=self._separator, strict=True)
            for _ in range(self._num_skipped):
                _next_record(reader)
            while self._has_header and isinstance(header, list) and not any(map(str.strip, header)):
                header = _next_record(reader)
            yield reader, header or []


class UnquotedTable(TextTable):
    """A file of lines split at one character, or with `separator` None not at all.

    At a space, a colon or a comma a line is split once: an id is before it, and a text behind. `names`: what its fields
    are; None: the first line that is not blank says so.
    """

    def __init__(self, text: TextFile, separator: str | None, names: Sequence[str] | None = None) -> None:
        super().__init__(text)
        self._separator = separator
        self._has_header = names is None
        remarks: tuple[str, ...] = ()
        if names is not None:
            self._names = tuple(names)
        else:
            lines = dropwhile(is_blank, (line for _, line in text.lines()))
            sample = list(map(self._fields, islice(lines, SAMPLE_ROWS)))
            self._names = checked_header(sample[0] if sample else [], text)
            remarks = _unnamed(self._names, sample[1:])
        form = _FORMS.get(separator, "list")
        self.form = TableForm(form, text.encoding, separator, self._has_header, remarks)

    def rows(self, columns: Collection[str]) -> Iterator[RawRow]:
        to_row = self._row_maker(columns)
        lines: Iterator[tuple[int, str]] = self._text.lines()
        if self._has_header:
            lines = islice(dropwhile(lambda numbered: is_blank(numbered[1]), lines), 1, None)
        for number, line in lines:
            if (row := to_row(number, self._fields(line))) is not None:
                yield row

    def _fields(self, line: str) -> list[str]:
        match self._separator:
            case None:
                return [line]
            case " ":
                return line.split(maxsplit=1)
            case ":" | ",":
                return line.split(self._separator, 1)
        fields = line.split(self._separator)
        return list(map(_unquoted, fields)) if '""' in line else fields


def is_blank(line: str) -> bool:
    """Whether a line holds nothing but separators and quotes, as spreadsheets write blank rows."""
    return not line.strip(' \t,;|"')


def checked_header(names: Collection[str], text: TextFile) -> tuple[str, ...]:
    """Return the names of a header without outer spaces. Raises UsageError for two that are equal."""
    name = text.file.name
    if any(map(is_undecoded, names)):
        raise UsageError(f"{name}: the header is not {text.encoding}: give --encoding, as in --encoding cp1252.")
    header = tuple(name.strip(_UNSEEN).strip() for name in names)
    if not header:
        raise UsageError(f"{name} is empty: it has no header.")
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


def not_in(encoding: str, where: str) -> str:
    """Return the message on a line, or another place, that a file's encoding cannot decode."""
    hint = "" if encoding != "UTF-8" else ": give --encoding if all of the file is another, as cp1252"
    return f"{where} is not {encoding}{hint}."


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
