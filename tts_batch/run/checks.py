"""What a waveform must be to count as a clip, and the figures that the manifest keeps of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tts_batch.engine.request import SpeechResult
from tts_batch.errors import REASONS, Reason
from tts_batch.records import Failure

SILENT_PEAK_DBFS = -60.0
_FINISH_REASONS = ("stop", "length", "loop", "error", "cancelled")


@dataclass(frozen=True, slots=True)
class Levels:
    """Loudness figures of a waveform; full scale is ±1."""

    peak: float
    rms_dbfs: float
    clipped_samples: int


def measure(audio: NDArray[np.float32]) -> Levels:
    """Measure samples [samples]; there must be at least one, and all must be finite."""
    magnitude = np.abs(audio)
    rms = float(np.sqrt(np.mean(np.square(audio, dtype=np.float64))))
    return Levels(float(magnitude.max()), _dbfs(rms), int(np.count_nonzero(magnitude > 1.0)))


def find_fault(result: SpeechResult, max_frames: int) -> Failure | None:
    """Say why `result` is not a good clip, or None when it is one. No engine is trusted."""
    ended = result.finish_reason
    if ended not in _FINISH_REASONS:
        return Failure("engine_error", f"The engine ended the row as {ended!r}, which is none of {_FINISH_REASONS}.")
    if ended == "error":
        return Failure(_known_reason(result.reason), result.error or "The engine gave no message.")
    if ended == "cancelled":
        return Failure("cancelled", "The engine cancelled the row.")
    if result.num_frames > max_frames:
        return Failure("engine_error", f"The engine made {result.num_frames} frames, over the budget of {max_frames}.")
    if ended == "loop":
        return Failure("repetitive_generation", f"The speech went round in circles ({result.num_frames} frames).")
    if ended == "length" or (result.num_frames == max_frames and not result.eos):
        return Failure("codec_budget_exhausted", f"No end of speech within the budget of {max_frames} frames.")
    return _find_audio_fault(result)


def _find_audio_fault(result: SpeechResult) -> Failure | None:
    audio = result.audio
    if audio is None or np.size(audio) == 0:
        return Failure("empty_audio", "The engine returned no samples.")
    if audio.ndim != 1 or result.sample_rate <= 0:
        return Failure("engine_error", f"The engine returned shape {audio.shape} at {result.sample_rate} Hz, not mono.")
    bad = int(np.count_nonzero(~np.isfinite(audio)))
    if bad:
        return Failure("non_finite", f"{bad} of {audio.size} samples are not finite.")
    peak_dbfs = _dbfs(float(np.abs(audio).max()))
    if peak_dbfs < SILENT_PEAK_DBFS:
        return Failure("silent_output", f"The loudest sample is at {peak_dbfs:.0f} dBFS, under {SILENT_PEAK_DBFS:.0f}.")
    return None


def _known_reason(reason: str | None) -> Reason:
    return next((known for known in REASONS if known == reason), "engine_error")


def _dbfs(amplitude: float) -> float:
    return 20.0 * float(np.log10(max(amplitude, 1e-10)))  # silence: -200 dBFS, a number that every table can hold
