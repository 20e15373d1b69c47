"""Row ids: given ones checked, missing ones derived from the content, repeated ones refused."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any

from tts_batch.dataset.cells import kind_of, quote
from tts_batch.dataset.notes import Notes
from tts_batch.errors import RowError

MAX_ID_CHARS = 1024
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def parse_id(cell: Any, notes: Notes, where: str) -> str:
    """Return a given id as text, unchanged but for outer spaces. Raises RowError(bad_id)."""
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        raise RowError("bad_id", "id is empty: name every row, or leave the whole column out to have ids derived.")
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8", errors="surrogateescape")
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53:
        notes.add("id is a whole number stored as a float; 1.0 is read as 1", where)
        cell = int(cell)
    if isinstance(cell, bool) or not isinstance(cell, str | int):
        raise RowError("bad_id", f"id {quote(cell)} is {kind_of(cell)}: give text or an integer.")
    text = str(cell).strip()
    if len(text) > MAX_ID_CHARS:
        raise RowError("bad_id", f"id has {len(text)} characters, more than {MAX_ID_CHARS}: {text[:40]!r}…")
    if _CONTROL.search(text):
        raise RowError("bad_id", f"id {text[:80]!r} holds control characters or broken UTF-8.")
    return text


class IdRegister:
    """Remembers the ids of a whole input in 16 bytes each (about 150 MB for a million rows)."""

    def __init__(self) -> None:
        self._first_row: dict[bytes, int] = {}
        self._occurrences: dict[bytes, int] = {}

    def claim(self, row_id: str, row_index: int) -> None:
        """Take `row_id` for a row. Raises RowError(duplicate_id) naming the row that has it."""
        first = self._first_row.setdefault(_digest(row_id), row_index)
        if first != row_index:
            raise RowError("duplicate_id", f"id {row_id!r} is already that of row {first + 1} of the input.")

    def derive(self, content: str) -> str:
        """Return an id for a row without one: a hash of its content, and its number among equal rows.

        Rows put in before or between others therefore move no id.
        """
        digest = _digest(content)
        occurrence = self._occurrences.get(digest, 0) + 1
        self._occurrences[digest] = occurrence
        return digest.hex() if occurrence == 1 else f"{digest.hex()}-{occurrence}"


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
