"""Row ids: given ones checked, missing ones derived from the content, repeated ones refused."""

from __future__ import annotations

import re
from array import array
from hashlib import blake2b
from typing import Any
from uuid import UUID

from tts_batch.dataset.cells import is_empty, kind_of, plain_text, quote
from tts_batch.dataset.notes import Notes
from tts_batch.errors import RowError

MAX_ID_CHARS = 1024
_MARK = "\ufeff"  # of the encoding: files put together have it within
_ROUNDED = re.compile(r"\d[.,]\d+E\+\d{2,}")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def parse_id(cell: Any, notes: Notes, where: str) -> str:
    """Return a given id as text, unchanged except for outer spaces. Raises RowError(bad_id)."""
    if is_empty(cell):
        raise RowError("bad_id", "id is empty: name every row, or leave the whole column out to have ids derived.")
    if isinstance(cell, bytes):
        cell = _decode(cell)
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 2**53:
        notes.add("id is a whole number stored as a float; 1.0 is read as 1", where)
        cell = int(cell)
    given = cell if isinstance(cell, str) else plain_text(cell)
    if given is None:
        raise RowError("bad_id", f"id {quote(cell)} is {kind_of(cell)}: give text or an integer.")
    text = given.strip().strip(_MARK)
    if len(text) > MAX_ID_CHARS:
        raise RowError("bad_id", f"id has {len(text)} characters, more than {MAX_ID_CHARS}: {text[:40]!r}…")
    if _CONTROL.search(text):
        raise RowError("bad_id", f"id {text[:80]!r} holds control characters or broken UTF-8.")
    if _ROUNDED.fullmatch(text):
        notes.add("id looks like a number that a spreadsheet has rounded", where, repr(text))
    return text


def _decode(cell: bytes) -> str:
    text = cell.rstrip(b"\0").decode("utf-8", "surrogateescape")  # NULs fill up what has a fixed size
    return (
        str(UUID(bytes=cell)) if len(cell) == 16 and _CONTROL.search(text) else text
    )  # as UUIDs' bytes most often have


class IdRegister:
    """Remembers the ids of a whole input, in some 32 bytes a row whatever they are."""

    def __init__(self) -> None:
        self._first_row = _Counts()
        self._occurrences = _Counts()

    def claim(self, row_id: str, row_index: int) -> None:
        """Take `row_id` for a row. Raises RowError(duplicate_id) naming the row that has it."""
        place = self._first_row.place(_digest(row_id))
        first = self._first_row.values[place] or row_index + 1
        if first != row_index + 1:
            raise RowError("duplicate_id", f"id {row_id!r} is already that of row {first} of the input.")
        self._first_row.values[place] = first

    def derive(self, content: str) -> str:
        """Return an id for a row without one: a hash of its content, and its number among equal rows.

        Rows put in before or between others therefore move no id.
        """
        digest = _digest(content)
        place = self._occurrences.place(digest)
        self._occurrences.values[place] += 1
        occurrence = self._occurrences.values[place]
        return digest.hex() if occurrence == 1 else f"{digest.hex()}-{occurrence}"


class _Counts:
    """A number for each key, 0 at first, in two flat arrays: a dict takes five times the memory.

    Of a key only 64 bits count: of a million, two are taken for one with a probability of 3e-8.
    """

    def __init__(self) -> None:
        self._num_keys = 0
        self._make_room(1 << 10)

    def place(self, digest: bytes) -> int:
        """Return where in `values` the number of a key is, until the next call."""
        key = int.from_bytes(digest[:8], "little") or 1  # 0 is an empty place
        place = self._find(key)
        if not self._keys[place]:
            if 3 * self._num_keys >= 2 * len(self._keys):
                self._grow()
                place = self._find(key)
            self._keys[place] = key
            self._num_keys += 1
        return place

    def _find(self, key: int) -> int:
        """Return the place of a key, or the empty one that it may take."""
        keys, last = self._keys, len(self._keys) - 1
        place = key & last
        while keys[place] and keys[place] != key:
            place = (place + 1) & last
        return place

    def _grow(self) -> None:
        keys, values = self._keys, self.values
        self._make_room(2 * len(keys))
        for key, value in zip(keys, values, strict=True):
            if key:
                place = self._find(key)
                self._keys[place], self.values[place] = key, value

    def _make_room(self, size: int) -> None:
        """`size`: a power of two."""
        self._keys, self.values = array("Q", bytes(8 * size)), array("Q", bytes(8 * size))


def _digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
