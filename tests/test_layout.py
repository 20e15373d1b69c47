"""The shape of the code base: what a reader may rely on when opening any file of it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "tts_batch").rglob("*.py"))
MAX_LINES = 500
MAX_FUNCTION_LINES = 90


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_a_module_is_read_in_one_sitting(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert source.count("\n") <= MAX_LINES
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < MAX_FUNCTION_LINES, f"{node.name} is long: split it"


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_a_module_says_what_it_is_for(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first_line = docstring.split("\n")[0]
    assert first_line.endswith((".", "?", ":")), "open the module with one sentence"


def test_no_module_is_a_drawer() -> None:
    assert not [path for path in MODULES if path.stem in {"utils", "util", "helpers", "common", "misc"}]


def test_test_files_mirror_the_package() -> None:
    rooms = {path.name for path in (ROOT / "tts_batch").iterdir() if path.is_dir() and path.name != "__pycache__"}
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders - rooms <= {"data", "docs", "gpu", "parity", "manual", "golden", "fakes"}
