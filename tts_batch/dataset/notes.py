"""Notes: how the tables were read, and what a user should know although nothing failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tts_batch.dataset.cells import printable
from tts_batch.dataset.tables import TableForm

_SEPARATOR_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs", " ": "the first space", ":": "the first colon"}


@dataclass(frozen=True, slots=True)
class ReadReport:
    """How a table was read, or several that are alike."""

    table: str  # the first of them
    num_tables: int
    form: TableForm
    columns: Mapping[str, str]  # our columns → the table's

    def __str__(self) -> str:
        """In one line: "t.csv: CSV, UTF-8, separated by commas, with a header; id, text ← sentence"."""
        form = self.form
        parts = [form.format]
        if form.encoding is not None:
            parts.append(form.encoding)
        if form.separator is not None:
            parts.append(f"separated by {_SEPARATOR_NAMES.get(form.separator, repr(form.separator))}")
        if form.has_header is not None:
            parts.append("with a header" if form.has_header else "without a header")
        more = f" and {self.num_tables - 1} more" if self.num_tables > 1 else ""
        columns = ", ".join(
            ours if ours == theirs else f"{ours} ← {printable(theirs)}" for ours, theirs in self.columns.items()
        )
        return f"{self.table}{more}: {', '.join(parts)}; {columns}"

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON takes it."""
        return {
            "table": self.table,
            "num_tables": self.num_tables,
            "format": self.form.format,
            "encoding": self.form.encoding,
            "separator": self.form.separator,
            "header": self.form.has_header,
            "columns": dict(self.columns),
        }


class Notes:
    """Collects notes while rows stream by; a million equal ones cost one entry."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, str, str]] = {}
        self._tables: dict[str, tuple[TableForm, tuple[tuple[str, str], ...]]] = {}

    def add(self, sentence: str, where: str = "", example: str = "") -> None:
        """Note `sentence`. `where` is the row, or "" for a note on the whole input; `example` is from that row."""
        count, where, example = self._seen.get(sentence, (0, where, example))
        self._seen[sentence] = (count + 1, where, example)

    def add_table(self, table: str, form: TableForm, columns: Mapping[str, str]) -> None:
        """Note how `table` is read; what was noted of it before is replaced."""
        self._tables[table] = form, tuple(columns.items())

    def sentences(self) -> list[str]:
        """The notes in the order in which they first came up, as a person reads them."""
        return [_with_count(sentence, *seen) for sentence, seen in self._seen.items()]

    def reports(self) -> list[ReadReport]:
        """How the tables were read, in their order; those that were read alike share a report."""
        alike: dict[tuple[TableForm, tuple[tuple[str, str], ...]], list[str]] = {}
        for table, reading in self._tables.items():
            alike.setdefault(reading, []).append(table)
        return [ReadReport(tables[0], len(tables), form, dict(columns)) for (form, columns), tables in alike.items()]


def _with_count(sentence: str, count: int, first: str, example: str) -> str:
    if not first:
        return sentence
    place = f"{first}: {example}" if example else first
    return f"{sentence} ({count} rows, the first is {place})" if count > 1 else f"{sentence} ({place})"
