"""Every command and program in the documents runs, in order, in a folder that has only the examples and recipes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import DOCS, ROOT, code_blocks

README = ROOT / "README.md"
PAGES = [README, *sorted(DOCS.glob("*.md")), *sorted((ROOT / "recipes").glob("*/README.md"))]
RUN = {page: [block for block in code_blocks(page) if block[0] in {"bash", "python"}] for page in PAGES}
RUNNABLE = [page for page in PAGES if RUN[page]]  # a recipe for GPUs has only "sh" blocks


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for folder in ("examples", "recipes"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def _run(language: str, code: str, folder: Path) -> None:
    command = {"bash": ["bash", "-euo", "pipefail", "-c", code], "python": [sys.executable, "-W", "error", "-c", code]}
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command[language], cwd=folder, env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run(page: Path, clone: Path) -> None:
    for language, code in RUN[page]:
        _run(language, code, clone)


def test_the_first_pages_are_among_those() -> None:
    assert {README, DOCS / "tables.md", ROOT / "recipes" / "first_job" / "README.md"} <= set(RUNNABLE)


def test_the_readme_begins_with_installing_and_a_first_run() -> None:
    """Installing cannot run inside a test; .ci/run does it."""
    commands = [code.strip() for language, code in code_blocks(README) if language in {"sh", "bash"}][:2]
    assert commands == ["pip install -e .", "tts-batch synth examples/hello.parquet --out wavs/ --model tiny"]


def test_the_test_command_of_the_readme_is_that_of_ci() -> None:
    (extra, command) = re.findall(
        r'`pip install -e "\.\[(\w+)\]" && (pytest[^`]*)`', README.read_text(encoding="utf-8")
    )[0]
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.search(rf"^{re.escape(command)}( *#.*)?$", ci, re.MULTILINE)
    assert re.search(rf'^pip install .*-e "\.\[.*\b{extra}\b.*\]"$', ci, re.MULTILINE)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = re.findall(r"(?:benchmarks|examples|recipes|notebooks|tests)/[\w./-]*\w", page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []
