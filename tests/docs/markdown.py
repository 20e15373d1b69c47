"""Reads Markdown: fenced code blocks, tables, links."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ANY_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def code_blocks(path: Path) -> list[tuple[str, str]]:
    """Return (language, code) of every block that names a language, in order."""
    return _FENCE.findall(path.read_text(encoding="utf-8"))


def section(path: Path, heading: str) -> str:
    """Return what follows a heading, up to the next of its level or above."""
    _, found, rest = path.read_text(encoding="utf-8").partition(f"\n{heading}\n")
    assert found, f"{path.name} has no heading {heading!r}"
    level = len(heading) - len(heading.lstrip("#"))
    return re.split(rf"^#{{1,{level}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def table_rows(text: str) -> list[list[str]]:
    """Return the cells of every table row in `text`, headers left out."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]
    rules = {i for i, row in enumerate(rows) if all(re.fullmatch(":?-+:?", cell) for cell in row)}
    return [row for i, row in enumerate(rows) if i not in rules and i + 1 not in rules]


def code_names(cell: str) -> list[str]:
    """Return what stands in backticks in a cell."""
    return re.findall(r"`([^`]+)`", cell)


def first_names(text: str) -> list[str]:
    """Return what stands in backticks in the first column of the tables in `text`."""
    return [name for row in table_rows(text) for name in code_names(row[0])]


def links(path: Path) -> list[str]:
    """Return the targets of a page's links, those in code blocks left out."""
    return re.findall(r"\]\(([^)\s]+)\)", _ANY_FENCE.sub("", path.read_text(encoding="utf-8")))


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub gives a page's headings."""
    headings = _HEADING.findall(_ANY_FENCE.sub("", path.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
