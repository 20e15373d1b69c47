"""Cells that are only carried through: as they are, except where no table could be written with them."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

MAX_DEPTH = 32  # of lists and structs in one another: readers of Parquet refuse some 100, in files that were written


def carried(cell: Any) -> Any:
    """Return `cell` as a table can hold it: what is nested too deeply, bytes and UUIDs become text."""
    if isinstance(cell, str):
        return encodable(cell)
    if isinstance(cell, list | tuple | dict):
        return _nested(cell) if _is_shallow(cell, MAX_DEPTH) else _as_json(cell)
    if isinstance(cell, UUID):  # few readers of Parquet know Arrow's type of them
        return str(cell)
    if isinstance(cell, bytes):  # text that is not UTF-8
        return cell.decode("utf-8", "backslashreplace")
    return cell


def encodable(text: str) -> str:
    """A JSON string may hold half a surrogate pair, which no table can be written with: show it as U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _nested(cell: Any) -> Any:
    if isinstance(cell, dict):
        return {encodable(str(name)): _nested(value) for name, value in cell.items()}
    if isinstance(cell, list | tuple):
        return [_nested(value) for value in cell]
    return carried(cell)


def _is_shallow(cell: Any, depth: int) -> bool:
    if not isinstance(cell, list | tuple | dict):
        return True
    values = cell.values() if isinstance(cell, dict) else cell
    return depth > 0 and all(_is_shallow(value, depth - 1) for value in values)


def _as_json(cell: Any) -> str | None:
    try:
        return encodable(json.dumps(cell, default=str))
    except RecursionError:
        return None
