"""cases.md: every need and every reported case has a test that exists, or a sentence instead."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROWS = re.findall(r"^\| (B?\d+) \| (.+) \| (.+) \|$", (TESTS / "cases.md").read_text(encoding="utf-8"), re.MULTILINE)
_TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")


@cache
def _tests_of(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_all_are_there_once() -> None:
    assert [key for key, _, _ in ROWS] == [*map(str, range(1, 26)), *(f"B{number:02}" for number in range(1, 72))]


@pytest.mark.parametrize(("key", "held_by"), [(key, held_by) for key, _, held_by in ROWS])
def test_every_named_test_exists(key: str, held_by: str) -> None:
    named = _TEST.findall(held_by)
    missing = [f"{file}::{name}" for file, name in named if name not in _tests_of(file)]
    assert not missing
    assert named or held_by.startswith(("Cannot apply: ", "Open: "))
    assert held_by.count(".py::") == len(named)
