"""A part of a recording, named as media fragments are: "long.wav#t=4,8" is from second 4 to second 8."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

_FRAGMENT = re.compile(r"#t=(\d{1,9}(?:\.\d{1,9})?)?(?:,(\d{1,9}(?:\.\d{1,9})?))?$")


@dataclass(frozen=True, slots=True)
class Segment:
    """From `start_s` to `end_s` seconds; None: to the end."""

    start_s: float = 0.0
    end_s: float | None = None

    @property
    def fragment(self) -> str:
        """The segment as a path's end."""
        end = "" if self.end_s is None else f",{_plain(self.end_s)}"
        return f"#t={_plain(self.start_s)}{end}"


def split_segment(path: str) -> tuple[str, Segment | None]:
    """Return a path without its fragment, and the segment that the fragment names.

    A file whose own name ends like that is itself.
    """
    found = _FRAGMENT.search(path)
    if found is None or not (found[1] or found[2]) or os.path.exists(path):
        return path, None
    return path[: found.start()], Segment(float(found[1] or 0), float(found[2]) if found[2] else None)


def _plain(seconds: float) -> str:
    return f"{seconds:.6f}".rstrip("0").rstrip(".")
