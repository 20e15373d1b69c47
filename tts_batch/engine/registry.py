"""open_engine: the engine that `--engine` names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tts_batch.engine.errors import EngineConfigError
from tts_batch.engine.request import Engine, EngineConfig


def open_engine(spec: str, config: EngineConfig) -> Engine:
    """Open "native", "vllm" or "package.module:factory", where `factory(config)` returns an Engine.

    Modules in the working folder are found. Raises EngineConfigError when there is no such engine or it cannot start.
    """
    if spec == "native":
        from tts_batch.engine.native import NativeEngine

        return NativeEngine(config)
    if spec == "vllm":
        raise EngineConfigError(
            "engine 'vllm' is not in this version; it will come with the extra tts-batch[vllm]: use --engine native."
        )
    factory = _find_factory(spec)
    try:
        engine = factory(config)
    except EngineConfigError:
        raise
    except Exception as error:
        raise EngineConfigError(f"engine {spec!r}: its factory raised {type(error).__name__}: {error}") from error
    if not isinstance(engine, Engine):
        raise EngineConfigError(
            f"engine {spec!r}: its factory returned a {type(engine).__name__}, which lacks one of "
            "sample_rate, info, num_wanted, add_request, abort_request, step, close."
        )
    return engine


def _find_factory(spec: str) -> Callable[[EngineConfig], Any]:
    module_name, colon, factory_name = spec.partition(":")
    if not (module_name and colon and factory_name):
        raise EngineConfigError(f"engine {spec!r} is not one of native, vllm, package.module:factory.")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise EngineConfigError(
            f"engine {spec!r}: importing {module_name} raised {type(error).__name__}: {error}"
        ) from error
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        raise EngineConfigError(f"engine {spec!r}: module {module_name} has no factory {factory_name!r}.")
    return factory
