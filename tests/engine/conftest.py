"""Tiny models: one of each kind per session, or a whole engine on one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch

from tests.engine.scripted import compute_threads
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.request import EngineConfig
from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.tiny import build_tiny


@pytest.fixture(scope="session")
def tiny_model() -> Callable[[str], Qwen3TTS]:
    """The tiny-random model of a kind, in float32 on the CPU."""

    @cache
    def load(kind: str) -> Qwen3TTS:
        checkpoint = resolve_checkpoint(str(build_tiny("tiny-random", kind)))
        return Qwen3TTS.load(checkpoint, "cpu", torch.float32)

    return load


@pytest.fixture
def open_tiny() -> Iterator[Callable[..., NativeEngine]]:
    """A NativeEngine on the tiny-random checkpoint of a kind; closed after the test."""
    engines: list[NativeEngine] = []

    def open_engine(kind: str = "custom_voice", **settings: object) -> NativeEngine:
        folder = str(build_tiny("tiny-random", kind))
        engines.append(NativeEngine(EngineConfig(model=folder, device="cpu", **settings)))  # type: ignore[arg-type]
        return engines[-1]

    yield open_engine
    for engine in engines:
        engine.close()


@pytest.fixture
def no_threads_left() -> Iterator[None]:
    """The test leaves no compute thread behind."""
    yield
    assert compute_threads() == []
