"""The notebooks run from top to bottom on the tiny model, and are committed without output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    copy = tmp_path / notebook.name
    copy.write_bytes(notebook.read_bytes())
    command = [sys.executable, "-m", "pytest", "--nbmake", "--nbmake-timeout=240", "-p", "no:cacheprovider", copy]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=290)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_committed_without_output(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code_cells = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code_cells
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code_cells)


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS
