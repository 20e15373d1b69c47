"""Reads the fenced code blocks of a Markdown file."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def code_blocks(path: Path) -> list[tuple[str, str]]:
    """Return (language, code) of every block that names a language, in order."""
    return _FENCE.findall(path.read_text(encoding="utf-8"))
