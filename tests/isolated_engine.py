"""The fake engine in a process of its own, `--engine tests.isolated_engine:create`, as workers run our own engine."""

from __future__ import annotations

from tts_batch.engine.isolated import IsolatedEngine
from tts_batch.engine.request import EngineConfig


def create(config: EngineConfig) -> IsolatedEngine:
    return IsolatedEngine("tests.fake_engine:create", config)
