"""The table of benchmarks/README.md names every script."""

from __future__ import annotations

import re
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_every_script_is_in_the_table() -> None:
    linked = set(re.findall(r"\]\(([\w/]+\.py)\)", (BENCHMARKS / "README.md").read_text()))
    assert linked == {str(path.relative_to(BENCHMARKS)) for path in BENCHMARKS.rglob("*.py")}
