"""Several clips of one row: the first take has the row's own id, the others the id with `__take2` and so on."""

from __future__ import annotations

import re

_LOOKS_LIKE_A_TAKE = re.compile(r".*__take[0-9]+", re.DOTALL)


def take_id(row_id: str, take: int) -> str:
    """Return the id of a take, counted from 0. The first has the row's, so that more takes can be added later."""
    return f"{row_id}__take{take + 1}" if take else row_id


def input_id(take_row_id: str, take: int) -> str:
    """Return the id in the table."""
    return take_row_id.removesuffix(f"__take{take + 1}") if take else take_row_id


def looks_like_a_take(row_id: str) -> bool:
    """Return whether an id of the table could be that of another row's take."""
    return _LOOKS_LIKE_A_TAKE.fullmatch(row_id) is not None
