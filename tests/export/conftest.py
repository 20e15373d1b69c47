"""A finished run with ids that mislead, made once with the fake engine; tests that change it take a copy."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.export.support import make_run, misleading_rows


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """18 clips of 20 rows; never changed."""
    return make_run(tmp_path_factory.mktemp("run"), misleading_rows(20), faults={"row-12": "silent"})


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """The same, for this test alone."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def torchcodec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `datasets` build audio columns where torchcodec is not: it asks for an encoder, and then keeps the files.

    torchcodec needs FFmpeg's libraries, which few test machines have. Nothing here encodes or decodes with it.
    """
    if importlib.util.find_spec("torchcodec") is None:
        encoders = ModuleType("torchcodec.encoders")
        encoders.AudioEncoder = None  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "torchcodec", ModuleType("torchcodec"))
        monkeypatch.setitem(sys.modules, "torchcodec.encoders", encoders)
