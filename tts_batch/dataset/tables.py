"""What a table of any format is: its form, its columns, and a stream of raw rows whose cells are unchecked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tts_batch.dataset.files import TableFile


@dataclass(frozen=True, slots=True)
class RawRow:
    """A row as it lies in its file. With a `problem` the line could not be read and `cells` is empty."""

    number: int  # where a person finds it, from 1: the line in a text file, the row in a binary one
    cells: Mapping[str, Any]
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class TableForm:
    """How a file's bytes are read as a table. What a format does not have is None."""

    format: str  # "CSV", "Parquet", …
    encoding: str | None = None
    separator: str | None = None  # one character
    has_header: bool | None = None
    remarks: tuple[str, ...] = ()  # what a user should know about this reading


class Table(Protocol):
    """One open file. Reading it twice gives the same rows."""

    file: TableFile
    form: TableForm

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of its columns. JSON lines may bring more later."""

    @property
    def types(self) -> Mapping[str, Any]:
        """The Arrow types of its columns, where the file has any: a text file has none."""

    @property
    def audio_columns(self) -> frozenset[str]:
        """The columns that hold recordings: too heavy to be carried through."""

    def sample(self, names: Collection[str]) -> Mapping[str, Any]:
        """A first value that is not null for each of `names`, where the first rows have one."""

    def rows(self, columns: Collection[str]) -> Iterator[RawRow]:
        """Stream the rows with the cells of `columns`; a JSON line without one of them lacks its key."""
