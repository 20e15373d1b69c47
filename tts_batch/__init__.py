"""A table of texts in, a folder of checked speech clips out, with Qwen3-TTS.

    import tts_batch

    result = tts_batch.synth("data.parquet", out="wavs/", model="tiny")     # as `tts-batch synth` does
    print(result.ok, result.failed, result.failures().to_pylist())

    with tts_batch.Synthesizer("tiny") as voice:                            # one model, held open
        voice.speak("Hello.", speaker="ryan").save("hello.wav")

Public are the names in `tts_batch.__all__`, the command line and the run folder; any other module, and any name that
starts with an underscore, may change in every version.

    runs        synth, Synthesizer, Clip, Failure, SynthResult, JobSummary
    settings    JobConfig, JobOptions
    errors      TTSBatchError, and of this kind UsageError, CannotContinueError, RowError, StoppedEarlyError
    constants   ExitStatus, Reason, REASONS
    engines     Engine, EngineConfig, FunctionEngine, open_engine, generate,
                SpeechRequest, SamplingParams, Reference, SpeechResult, OnChunk,
                EngineError, EngineConfigError, DuplicateRequest

`help(tts_batch.JobConfig)` and the like show each of them. Nothing is loaded before it is used: importing this package
loads neither torch nor numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tts_batch.api import Synthesizer as Synthesizer
    from tts_batch.api import SynthResult as SynthResult
    from tts_batch.api import synth as synth
    from tts_batch.clip import Clip as Clip
    from tts_batch.config import JobConfig as JobConfig
    from tts_batch.config import JobOptions as JobOptions
    from tts_batch.engine.errors import DuplicateRequest as DuplicateRequest
    from tts_batch.engine.errors import EngineConfigError as EngineConfigError
    from tts_batch.engine.errors import EngineError as EngineError
    from tts_batch.engine.function import FunctionEngine as FunctionEngine
    from tts_batch.engine.generation import generate as generate
    from tts_batch.engine.registry import open_engine as open_engine
    from tts_batch.engine.request import Engine as Engine
    from tts_batch.engine.request import EngineConfig as EngineConfig
    from tts_batch.engine.request import OnChunk as OnChunk
    from tts_batch.engine.request import Reference as Reference
    from tts_batch.engine.request import SamplingParams as SamplingParams
    from tts_batch.engine.request import SpeechRequest as SpeechRequest
    from tts_batch.engine.request import SpeechResult as SpeechResult
    from tts_batch.errors import REASONS as REASONS
    from tts_batch.errors import CannotContinueError as CannotContinueError
    from tts_batch.errors import ExitStatus as ExitStatus
    from tts_batch.errors import Reason as Reason
    from tts_batch.errors import RowError as RowError
    from tts_batch.errors import TTSBatchError as TTSBatchError
    from tts_batch.errors import UsageError as UsageError
    from tts_batch.records import Failure as Failure
    from tts_batch.run.signals import StoppedEarlyError as StoppedEarlyError
    from tts_batch.store.status import JobSummary as JobSummary

__version__ = "0.1.0.dev0"

_MODULES = {
    "api": "SynthResult Synthesizer synth",
    "clip": "Clip",
    "config": "JobConfig JobOptions",
    "engine.errors": "DuplicateRequest EngineConfigError EngineError",
    "engine.function": "FunctionEngine",
    "engine.generation": "generate",
    "engine.registry": "open_engine",
    "engine.request": "Engine EngineConfig OnChunk Reference SamplingParams SpeechRequest SpeechResult",
    "errors": "REASONS CannotContinueError ExitStatus Reason RowError TTSBatchError UsageError",
    "records": "Failure",
    "run.signals": "StoppedEarlyError",
    "store.status": "JobSummary",
}
_HOME = {name: f"tts_batch.{module}" for module, names in _MODULES.items() for name in names.split()}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, so that `import tts_batch` and `tts-batch --help` stay light."""
    if name not in _HOME:
        raise AttributeError(f"module 'tts_batch' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """What help() shows in full; the settings, errors and constants inherit pages of methods, so it only names them."""
    return ["Clip", "Failure", "FunctionEngine", "SynthResult", "Synthesizer", "__version__", "generate", "open_engine",
            "synth"]  # fmt: skip
