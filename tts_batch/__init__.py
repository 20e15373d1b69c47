"""tts-batch: a table of texts in, a folder of checked speech clips out, with Qwen3-TTS."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tts_batch.api import Clip, Synthesizer, SynthResult, synth
    from tts_batch.config import JobConfig
    from tts_batch.errors import CannotContinueError, ExitStatus, RowError, TTSBatchError, UsageError

__version__ = "0.1.0.dev0"

__all__ = [
    "CannotContinueError",
    "Clip",
    "ExitStatus",
    "JobConfig",
    "RowError",
    "SynthResult",
    "Synthesizer",
    "TTSBatchError",
    "UsageError",
    "__version__",
    "synth",
]

_HOME = {
    "Clip": "tts_batch.api",
    "SynthResult": "tts_batch.api",
    "Synthesizer": "tts_batch.api",
    "synth": "tts_batch.api",
    "JobConfig": "tts_batch.config",
    "CannotContinueError": "tts_batch.errors",
    "ExitStatus": "tts_batch.errors",
    "RowError": "tts_batch.errors",
    "TTSBatchError": "tts_batch.errors",
    "UsageError": "tts_batch.errors",
}


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used, so that `import tts_batch` and `tts-batch --help` stay light."""
    if name not in _HOME:
        raise AttributeError(f"module 'tts_batch' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
