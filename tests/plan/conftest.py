"""Small real tables, planned on the tiny checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plan.support import Planner


@pytest.fixture
def planner(tmp_path: Path) -> Planner:
    return Planner(tmp_path)
