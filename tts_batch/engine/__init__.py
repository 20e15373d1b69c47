"""The engines: the contract, our own behind it, and what it takes to plug in another model."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tts_batch.engine.errors import DuplicateRequest, EngineConfigError, EngineError
    from tts_batch.engine.function import FunctionEngine
    from tts_batch.engine.generation import generate
    from tts_batch.engine.registry import open_engine
    from tts_batch.engine.request import Engine, EngineConfig, Reference, SamplingParams, SpeechRequest, SpeechResult

__all__ = [
    "DuplicateRequest",
    "Engine",
    "EngineConfig",
    "EngineConfigError",
    "EngineError",
    "FunctionEngine",
    "Reference",
    "SamplingParams",
    "SpeechRequest",
    "SpeechResult",
    "generate",
    "open_engine",
]

_MODULES = {
    "errors": ("DuplicateRequest", "EngineConfigError", "EngineError"),
    "function": ("FunctionEngine",),
    "generation": ("generate",),
    "registry": ("open_engine",),
    "request": ("Engine", "EngineConfig", "Reference", "SamplingParams", "SpeechRequest", "SpeechResult"),
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, so that importing a module of the engine loads no other."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"tts_batch.engine.{module}"), name)
    raise AttributeError(f"module 'tts_batch.engine' has no attribute {name!r}")
