"""Engines on the scripted vLLM-Omni of tests/fakes/vllm_site, each with its real host and stage processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tts_batch.engine.request import EngineConfig
from tts_batch.engine.vllm.engine import VllmEngine
from tts_batch.model.tiny import build_tiny

ROOT = Path(__file__).parents[3]
SITE = ROOT / "tests" / "fakes" / "vllm_site"


@pytest.fixture
def vllm_site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Have this process and those it starts find the scripted packages. Returns the file of their process numbers."""
    monkeypatch.syspath_prepend(str(SITE))  # for the releases
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SITE), str(ROOT)]))
    monkeypatch.setenv("FAKE_VLLM_PIDS", str(tmp_path / "pids"))
    monkeypatch.setenv("FAKE_VLLM_LOG", str(tmp_path / "requests"))
    return tmp_path / "pids"


@pytest.fixture
def open_vllm(vllm_site: Path) -> Iterator[Callable[..., VllmEngine]]:
    """A VllmEngine on the tiny-random checkpoint of a kind; closed after the test."""
    engines: list[VllmEngine] = []

    def open_engine(kind: str = "custom_voice", **settings: Any) -> VllmEngine:
        engines.append(VllmEngine(EngineConfig(model=str(build_tiny("tiny-random", kind)), device="cuda", **settings)))
        return engines[-1]

    yield open_engine
    for engine in engines:
        engine.close()


@pytest.fixture(scope="module")
def shared_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmEngine]:
    """One engine for the tests of a module that leave it alive."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SITE))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(SITE), str(ROOT)]))
        engine = VllmEngine(EngineConfig(model=str(build_tiny("tiny-random", "custom_voice")), device="cuda"))
    yield engine
    engine.close()
