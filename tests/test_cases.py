"""cases.md: every need and every reported case names test files that exist, or says why it has none."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROWS = re.findall(r"^\| ([BK]?\d+) \| (.+) \| (.+) \|$", (TESTS / "cases.md").read_text(encoding="utf-8"), re.MULTILINE)
_FILE = re.compile(r"`([\w/]+\.py)`")


def _problem(name: str) -> str | None:
    """Say what is wrong with a test file that cases.md names, if anything is."""
    path = TESTS / name
    if not path.is_file():
        elsewhere = ", ".join(str(found.relative_to(TESTS)) for found in sorted(TESTS.rglob(path.name)))
        return f"{name} does not exist" + (f"; was it moved to {elsewhere}?" if elsewhere else "")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return None if any(function.startswith("test_") for function in functions) else f"{name} has no tests"


def test_all_cases_are_listed_once() -> None:
    kinds = [key for key, _, _ in ROWS if key.startswith("K")]
    cases = [key for key, _, _ in ROWS if not key.startswith("K")]
    assert cases == [*map(str, range(1, 26)), *(f"B{number:02}" for number in range(1, 72))]
    assert kinds == [f"K{number:02}" for number in range(1, len(kinds) + 1)] and len(kinds) >= 20


def test_every_named_file_has_tests() -> None:
    cases: dict[str, list[str]] = {}
    for key, _, tests in ROWS:
        for name in _FILE.findall(tests):
            cases.setdefault(name, []).append(key)
    problems = [f"{problem} (cases {', '.join(cases[name])})" for name in sorted(cases) if (problem := _problem(name))]
    assert not problems, "\n" + "\n".join(problems)


@pytest.mark.parametrize(("key", "tests"), [(key, tests) for key, _, tests in ROWS])
def test_every_case_has_files_or_a_reason(key: str, tests: str) -> None:
    assert _FILE.search(tests) or tests.startswith(("Cannot apply: ", "Open: "))
    assert "::" not in tests, "name the file alone: functions are renamed more often than files"


def test_a_file_that_is_missing_or_empty_is_reported() -> None:
    assert _problem("run/test_cases.py") == "run/test_cases.py does not exist; was it moved to test_cases.py?"
    assert _problem("docs/markdown.py") == "docs/markdown.py has no tests"
    assert _problem("test_cases.py") is None
