"""The fake engine, set through the environment as its workers read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.run.support import ROOT


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Return a function that sets the fake engine's settings for runs of this test."""
    monkeypatch.chdir(ROOT)  # so that workers find tests.fake_engine

    def set_fake(**settings: Any) -> None:
        monkeypatch.setenv("FAKE_ENGINE", json.dumps({"state": str(tmp_path), **settings}))

    set_fake()
    return set_fake
