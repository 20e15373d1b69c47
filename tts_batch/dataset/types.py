"""Columns whose types differ between files: most have a common type, and those that have none are noted."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from tts_batch.dataset.notes import Notes
from tts_batch.dataset.tables import Table


class SeenTypes:
    """The types of the carried columns, over all files. Our own columns need none: their cells are read one by one."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes
        self._seen: dict[str, tuple[pa.DataType, str]] = {}  # column → its type so far, and the file that set it
        self._mixed: set[str] = set()

    def add(self, table: Table, columns: Iterable[str]) -> None:
        """Note a column of a type that few readers know, and one that has no common type with the files before."""
        types = table.types
        for name in columns:
            if name not in types or name in self._mixed:
                continue
            ours, file = types[name], table.file.name
            if isinstance(ours, pa.BaseExtensionType) or pa.types.is_interval(ours) or pa.types.is_union(ours):
                self._notes.add(
                    f"column {name!r} is {ours}, which few readers know: it is carried through as a plain value or text"
                )
            seen, first = self._seen.get(name, (ours, file))
            both = _common(_plain(seen), _plain(ours))
            if both is not None:
                self._seen[name] = (both, first)
                continue
            self._mixed.add(name)
            self._notes.add(f"column {name!r} is {seen} in {first} and {ours} in {file}: it is carried through as text")


def is_time(kind: pa.DataType) -> bool:
    """Whether a column holds dates, times of day, moments or durations."""
    return bool(pa.types.is_temporal(kind)) and not pa.types.is_interval(kind)


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of the values, however they are stored."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    return pa.string() if pa.types.is_string_view(kind) or pa.types.is_large_string(kind) else kind


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    try:
        both = pa.unify_schemas([pa.schema([("_", one)]), pa.schema([("_", other)])], promote_options="permissive")
    except pa.ArrowException:
        return None
    return both.field(0).type
