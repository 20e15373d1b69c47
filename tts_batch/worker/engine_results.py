"""What an engine returns is checked when it arrives: a result of the wrong types becomes an error of its request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tts_batch.engine.request import NUM_CODEBOOKS, SpeechResult

_DEVICE_IS_BROKEN = re.compile(r"\b(CUDA|HIP|cuBLAS|cuDNN|cuFFT) error|device-side assert|\bCU(BLAS|DNN|FFT)_STATUS_")
_MAX_CODE = 32_767  # codes are saved as int16
_EFFECTIVE = ("language", "speaker", "instruct")  # what a record keeps of it


def check_result(result: SpeechResult) -> SpeechResult:
    """Return the result if its fields have the types that the contract gives them, else an "error" that names one."""
    problem = _find_problem(result)
    if problem is None:
        return result
    return SpeechResult(
        request_id=result.request_id,
        audio=None,
        sample_rate=0,
        codes=None,
        num_frames=0,
        finish_reason="error",
        eos=False,
        reason="engine_error",
        error=f"The engine returned a result that does not keep to its contract: {problem}.",
    )


def own_arrays(result: SpeechResult) -> SpeechResult:
    """Return the result with arrays that an engine which uses its buffers again cannot change.

    What else it holds becomes plain too, so that it can travel; `metrics`, which no clip needs, are left behind.
    """
    return replace(
        result,
        audio=None if result.audio is None else result.audio.copy(),
        codes=None if result.codes is None else result.codes.copy(),
        effective={name: result.effective[name] for name in _EFFECTIVE if name in result.effective},
        metrics={},
    )


def _find_problem(result: Any) -> str | None:
    audio, codes = result.audio, result.codes
    if audio is not None and not (isinstance(audio, np.ndarray) and audio.dtype == np.float32):
        kind = audio.dtype if isinstance(audio, np.ndarray) else type(audio).__name__
        return f"audio is {kind}, not a float32 array"
    if codes is not None and not (
        isinstance(codes, np.ndarray) and codes.dtype.kind in "iu" and codes.shape[1:] == (NUM_CODEBOOKS,)
    ):
        return "codes are not an integer array [num_frames, 16]"
    if codes is not None and codes.size and not (codes.min() >= 0 and codes.max() <= _MAX_CODE):
        return f"codes are not all from 0 to {_MAX_CODE}"
    for name in ("sample_rate", "num_frames"):
        value = getattr(result, name)
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 0 <= value < 2**31:
            return f"{name} is {value!r}, not a whole number from 0 to 2147483647"
    if not isinstance(result.finish_reason, str):
        return f"finish_reason is {result.finish_reason!r}, not a string"
    if not isinstance(result.eos, bool | np.bool_):
        return f"eos is {result.eos!r}, not a bool"
    if not isinstance(result.effective, Mapping):
        return f"effective is {result.effective!r}, not a mapping"
    texts = {"reason": result.reason, "error": result.error}
    texts |= {f"effective[{name!r}]": result.effective.get(name) for name in _EFFECTIVE}
    for name, value in texts.items():
        if value is not None and not isinstance(value, str):
            return f"{name} is {value!r}, not a string or None"
    return None


def is_device_broken(result: SpeechResult) -> bool:
    """Whether an engine's error is its device's: after a device-side assert every later request would fail too."""
    return result.finish_reason == "error" and _DEVICE_IS_BROKEN.search(str(result.error or "")) is not None
