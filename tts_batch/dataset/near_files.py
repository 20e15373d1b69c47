"""A second look for a file that is not there: what lies near, under a name that looks alike."""

from __future__ import annotations

import os
import unicodedata
from functools import lru_cache
from urllib.parse import unquote

_MAX_NAMES = 50_000  # of a folder: a larger one is not searched for a message
_STRIPPED = " \t\r\n\u00a0\u200b\ufeff\"'`«»“”„‘’"


def near_file(path: str) -> str | None:
    """Return the one existing file that an absolute `path` may have meant, None if there is none.

    Letter case, Unicode form, quotes, spaces, backslashes, %-escapes and the suffix may differ.
    """
    for candidate in dict.fromkeys((path, path.replace("\\", "/"), unquote(path))):
        found: str | None = os.sep
        for part in filter(None, candidate.split("/")):
            if found is not None:
                found = _near_name(found, part)
        if found is not None and os.path.isfile(found):
            return found
    return None


def _near_name(folder: str, name: str) -> str | None:
    """Return the path of `name` in `folder`, or else of the one name that looks like it."""
    exact = os.path.join(folder, name)
    if os.path.exists(exact):
        return exact
    by_key = _names_by_key(folder, _modified(folder))
    stem = os.path.splitext(_key(name))[0]
    for alike in (by_key.get(_key(name), ()), by_key.get(stem, ())):
        if len(alike) == 1:
            return os.path.join(folder, alike[0])
    return None


def _modified(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=16)
def _names_by_key(folder: str, modified_ns: int) -> dict[str, tuple[str, ...]]:
    """The names in `folder` by what two names that look alike share, with and without the suffix."""
    found: dict[str, tuple[str, ...]] = {}
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names if len(names) <= _MAX_NAMES else ():
        for key in {_key(name), os.path.splitext(_key(name))[0]}:
            found[key] = (*found.get(key, ()), name)
    return found


def _key(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold().strip(_STRIPPED)
