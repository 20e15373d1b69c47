"""JSON: one object a line, or objects one after another over many lines, as in an array."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

from tts_batch.dataset.cells import kind_of, printable
from tts_batch.dataset.tables import RawRow, TableForm
from tts_batch.dataset.text_files import TextFile, is_undecoded
from tts_batch.dataset.text_tables import SAMPLE_ROWS, TextTable, not_in
from tts_batch.errors import UsageError

_CHUNK_CHARS = 1 << 20
_MAX_VALUE_CHARS = 1 << 26  # of an object of an array: what is longer is a bracket that is never closed
_BEFORE_FIRST = re.compile(r"\s*\[?\s*")
_BETWEEN = re.compile(r"[\s,]*(?:\]\s*)?")


class JsonTable(TextTable):
    """A file of JSON objects. Raises UsageError when its first values are none of them objects."""

    def __init__(self, text: TextFile) -> None:
        super().__init__(text)
        first = next((line.strip() for _, line in text.lines()), "")
        self._is_array = first.startswith("[") or first == "{"
        self.form = TableForm("JSON" if self._is_array else "JSON lines", text.encoding)
        names: dict[str, None] = {}
        problem: str | None = None
        for _, value in islice(self._values(), SAMPLE_ROWS):
            if isinstance(value, dict):
                names |= dict.fromkeys(value)
            else:
                problem = problem or value
        if problem is not None and not names:
            raise UsageError(f"{text.file.name} holds no JSON objects: {printable(problem)}")
        self._names = tuple(names)

    @property
    def columns(self) -> tuple[str, ...]:
        return self._names

    def rows(self, columns: Collection[str]) -> Iterator[RawRow]:
        """As `Table.rows`, with all keys of each object, since a later one may bring a new one."""
        for number, value in self._values():
            if isinstance(value, dict):
                yield RawRow(number, value)
            else:
                yield RawRow(number, {}, value)

    def _values(self) -> Iterator[tuple[int, dict[str, Any] | str]]:
        """Yield (number of the line or of the array's item, the object or what is wrong with it)."""
        return self._items() if self._is_array else self._lines()

    def _lines(self) -> Iterator[tuple[int, dict[str, Any] | str]]:
        for number, line in self._text.lines():
            if is_undecoded(line):
                yield number, not_in(self._text.encoding, f"line {number}")
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, f"line {number} is not a JSON object: {error}"
                continue
            yield number, _object(value, f"line {number}")

    def _items(self) -> Iterator[tuple[int, dict[str, Any] | str]]:
        decoder = json.JSONDecoder()
        number, place, ahead, gap = 0, 0, "", _BEFORE_FIRST
        with self._text.open() as stream:
            while True:
                found = gap.match(ahead, place)
                place = found.end() if found else place
                try:
                    value, end = decoder.raw_decode(ahead, place)
                except (ValueError, RecursionError) as error:
                    more = stream.read(max(_CHUNK_CHARS, len(ahead) - place))
                    if not more and place == len(ahead):
                        return
                    if not more or len(ahead) - place > _MAX_VALUE_CHARS:
                        raise UsageError(f"{self.file.name} is damaged after item {number}: {error}") from error
                    ahead, place = ahead[place:] + more, 0
                    continue
                number, gap = number + 1, _BETWEEN
                is_broken = is_undecoded(ahead[place:end])
                place = end
                name = f"item {number}"
                yield number, not_in(self._text.encoding, name) if is_broken else _object(value, name)


def _object(value: Any, name: str) -> dict[str, Any] | str:
    return value if isinstance(value, dict) else f"{name} is not a JSON object: it is {kind_of(value)}"
