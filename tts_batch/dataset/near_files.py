"""A second look for a file that is not there: what lies near, under a name that looks alike."""

from __future__ import annotations

import os
import unicodedata
from functools import lru_cache
from urllib.parse import unquote

_MAX_NAMES = 50_000  # of a folder: a larger one is not searched for a message
# Small Cyrillic and Greek letters that are drawn as Latin ones are.
_LOOKALIKES = str.maketrans("авеіјкмнорсѕтухһԁɡοανι", "abeijkmhopcstyxhdgoavi")
_STRIPPED = " \t\r\n\u00a0\u200b\ufeff\"'`«»“”„‘’"


def near_file(path: str) -> str | None:
    """Return the one existing file that an absolute `path` may have meant, None if there is none.

    Letter case, Unicode form, letters that look alike, all signs, %-escapes and the suffix may differ, and folders in
    its middle may be those of another machine.
    """
    candidates = dict.fromkeys((path, path.replace("\\", "/"), unquote(path)))
    for can_skip in (False, True):
        for candidate in candidates:
            found: str | None = os.sep
            for part in filter(None, candidate.split("/")):
                if found is not None:
                    found = _near_name(found, part) or (found if can_skip and found != os.sep else None)
            if found is not None and os.path.isfile(found):
                return found
    return None


def _near_name(folder: str, name: str) -> str | None:
    """Return the path of `name` in `folder`, or else of the one name that looks like it."""
    exact = os.path.join(folder, name)
    if os.path.exists(exact):
        return exact
    by_key = _names_by_key(folder, _modified(folder))
    for key in _keys(name):
        alike = by_key.get(key, ())
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
    """The names in `folder` by what two names that look alike share."""
    found: dict[str, tuple[str, ...]] = {}
    try:
        names = os.listdir(folder)
    except OSError:
        return found
    for name in names if len(names) <= _MAX_NAMES else ():
        for key in dict.fromkeys(_keys(name)):
            found[key] = (*found.get(key, ()), name)
    return found


def _keys(name: str) -> tuple[str, str, str]:
    """Return what names that look alike share: how they are read, that without the suffix, and letters and digits."""
    read = unicodedata.normalize("NFKC", name).casefold().translate(_LOOKALIKES).strip(_STRIPPED)
    stem = os.path.splitext(read)[0]
    return read, stem, "".join(filter(str.isalnum, read))
