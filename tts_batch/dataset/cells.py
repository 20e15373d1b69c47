"""Cells of simple types: text, flags, numbers and the task, whatever type the table stores them in."""

from __future__ import annotations

import re
from datetime import date, time
from decimal import Decimal
from math import isnan
from typing import Any
from uuid import UUID

from tts_batch.choices import TASKS, Task
from tts_batch.errors import Reason, RowError

_DIGITS = re.compile(r"[+-]?[0-9]{1,40}(?:\.0+)?")  # "7.0" is what pandas writes for 7 beside a null
_SURROGATE = re.compile("[\ud800-\udfff]")
MAX_SEED = 2**63 - 1
_TRUE = frozenset({"true", "t", "yes", "y", "1"})
_FALSE = frozenset({"false", "f", "no", "n", "0"})
_KINDS: dict[type, str] = {
    type(None): "null",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    bytes: "bytes",
    list: "a list",
    tuple: "a list",
    dict: "a struct",
}
_TASK_OF: dict[str, Task] = {task.replace("_", ""): task for task in TASKS} | {"voiceclone": "base", "clone": "base"}


def is_empty(cell: Any) -> bool:
    """Whether a cell says nothing: null, blank, or the NaN that pandas leaves for null."""
    if isinstance(cell, str):
        return not cell.strip()
    return cell is None or (isinstance(cell, float) and isnan(cell))


def quote(cell: object) -> str:
    """A cell as a message shows it: a cell may hold a whole recording, a message holds no more than 200 of it."""
    if isinstance(cell, str):
        return repr(cell if len(cell) <= 200 else cell[:200] + "…")
    shown = repr(cell)
    return shown if len(shown) <= 200 else shown[:200] + "…"


def printable(text: str) -> str:
    """Text as a message shows it: what a terminal would act on, or cannot show, is written as its escape."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def kind_of(cell: Any) -> str:
    """What a cell holds, in the words of a message."""
    return _KINDS.get(type(cell), f"a {type(cell).__name__}")


def parse_string(cell: Any, column: str, reason: Reason) -> str | None:
    """Return the text of a cell unchanged, None for an empty one. Raises RowError(reason) for other types."""
    if isinstance(cell, str):
        if not cell.isascii() and _SURROGATE.search(cell):
            raise RowError(reason, f"{column} holds half of a surrogate pair, which no tokenizer reads: write it anew.")
        return cell if cell.strip() else None
    if is_empty(cell):
        return None
    if isinstance(cell, bytes):
        try:
            return cell.rstrip(b"\0").decode("utf-8")  # NULs fill up what has a fixed size
        except UnicodeDecodeError as error:
            raise RowError(reason, f"{column} is bytes that are not UTF-8: {error.reason}.") from error
    if (text := plain_text(cell)) is not None:
        return text
    raise RowError(reason, f"{column} is {kind_of(cell)}: it takes text.")


def plain_text(cell: Any) -> str | None:
    """Return the one usual spelling of an integer, decimal, UUID, date or time; None for what has none."""
    if isinstance(cell, bool):
        return None
    if isinstance(cell, Decimal) and cell.is_finite():
        return format(cell.to_integral_value() if cell == cell.to_integral_value() else cell, "f")
    if isinstance(cell, int | UUID | date | time):
        return str(cell)
    return None


def parse_flag(cell: Any, column: str) -> bool | None:
    """Return True or False, None for an empty cell. Raises RowError(bad_row)."""
    if is_empty(cell):
        return None
    if isinstance(cell, bool):
        return cell
    word = str(int(cell) if isinstance(cell, float) and cell in {0.0, 1.0} else cell).strip().casefold()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise RowError("bad_row", f"{column} is {quote(cell)}: it takes true or false.")


def parse_whole(cell: Any, column: str, low: int, high: int, reason: Reason) -> int | None:
    """Return an integer within low..high, None for an empty cell. Raises RowError(reason)."""
    if is_empty(cell):
        return None
    value = _whole(cell)
    if value is None or not low <= value <= high:
        raise RowError(reason, f"{column} is {quote(cell)}: it takes a whole number from {low} to {high}.")
    return value


def parse_seconds(cell: Any, column: str) -> float | None:
    """Return a number of seconds from 0 to a billion, None for an empty cell. Raises RowError(bad_row)."""
    if is_empty(cell):
        return None
    try:
        seconds = -1.0 if isinstance(cell, bool) else float(cell)
    except (TypeError, ValueError, OverflowError):
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise RowError("bad_row", f"{column} is {quote(cell)}: it takes a number of seconds.")
    return seconds


def _whole(cell: Any) -> int | None:
    if isinstance(cell, str):
        digits = cell.strip()
        return int(digits.partition(".")[0]) if _DIGITS.fullmatch(digits) else None
    if isinstance(cell, Decimal):
        return int(cell) if cell.is_finite() and cell == cell.to_integral_value() else None
    if isinstance(cell, bool) or not isinstance(cell, int | float) or cell != cell // 1:
        return None
    return int(cell)


def parse_task(cell: Any) -> Task | None:
    """Return the task, None for an empty cell; "CustomVoice" and "custom-voice" are custom_voice."""
    if is_empty(cell):
        return None
    task = _TASK_OF.get("".join(char for char in str(cell).casefold() if char.isalnum()))
    if task is None:
        raise RowError("wrong_task", f"task is {quote(cell)}: it takes {', '.join(TASKS)}.")
    return task
