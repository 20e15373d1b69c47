"""open_engine: the engine that `--engine` names."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tts_batch.engine.errors import EngineConfigError
from tts_batch.engine.function import FunctionEngine, parameter_name
from tts_batch.engine.request import Engine, EngineConfig


def open_engine(spec: str, config: EngineConfig) -> Engine:
    """Open "native", "vllm" or "package.module:name", in a module that may lie in the working folder.

    `name` is a factory, which is called with the config and returns an Engine or a function for FunctionEngine, or it
    is such a function itself: its one parameter is called `requests` or `request`. `config.max_num_seqs` is the batch
    size of such a function. Raises EngineConfigError when there is no such engine or it cannot start.
    """
    if spec == "native":
        from tts_batch.engine.native import NativeEngine

        return NativeEngine(config)
    if spec == "vllm":
        from tts_batch.engine.vllm.engine import VllmEngine

        return VllmEngine(config)
    found = _find(spec)
    if parameter_name(found) is not None:
        return FunctionEngine(found, config.max_num_seqs)
    try:
        made = found(config)
    except EngineConfigError:
        raise
    except Exception as error:
        raise EngineConfigError(f"engine {spec!r}: its factory raised {type(error).__name__}: {error}") from error
    if isinstance(made, Engine):
        return made
    if callable(made) and parameter_name(made) is not None:
        return FunctionEngine(made, config.max_num_seqs)
    raise EngineConfigError(
        f"engine {spec!r}: its factory returned {type(made).__name__}, which is neither an Engine, with sample_rate, "
        "info, num_wanted, add_request, abort_request, step and close, nor a function of `requests` or `request`."
    )


def has_module(name: str) -> bool:
    """Whether an engine's module can be found; the packages that it is in are imported, and it is not."""
    _search_working_folder()
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _search_working_folder() -> None:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _find(spec: str) -> Callable[..., Any]:
    module_name, _, name = spec.partition(":")
    if not (module_name and name):
        raise EngineConfigError(f"engine {spec!r} is not one of native, vllm, package.module:factory.")
    _search_working_folder()
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise EngineConfigError(
            f"engine {spec!r}: importing {module_name} raised {type(error).__name__}: {error}"
        ) from error
    found = getattr(module, name, None)
    if not callable(found):
        raise EngineConfigError(f"engine {spec!r}: module {module_name} has no factory or function {name!r}.")
    return found
