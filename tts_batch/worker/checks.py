"""What a waveform must be to count as a clip: the engine's own account first, then what can be heard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tts_batch.engine.request import SpeechResult
from tts_batch.errors import REASONS, Reason
from tts_batch.ipc.messages import CheckLimits
from tts_batch.records import Failure
from tts_batch.worker.sound import Audio, Levels, Tail, dbfs, find_silences, flatness, measure, zero_crossings

_FINISH_REASONS = ("stop", "length", "loop", "error", "cancelled")
_DEFAULTS = CheckLimits()


@dataclass(frozen=True, slots=True)
class Examined:
    """A result with everything that was measured of it."""

    failure: Failure | None
    levels: Levels | None = None
    checks: dict[str, Any] = field(default_factory=dict)  # what → figure, as the manifest keeps it


def examine(
    result: SpeechResult, max_frames: int, expected_s: float, limits: CheckLimits, reference: Tail | None = None
) -> Examined:
    """Check `result` against the limits; `expected_s` is the length of its text at a normal pace. No engine is trusted.

    What can be measured is measured of failed results too.
    """
    failure = find_fault(result, max_frames, limits.silent_peak_dbfs)
    if result.audio is None or (failure is not None and find_broken_audio(result)):
        return Examined(failure)
    checks = _measure(result.audio, result.sample_rate, expected_s, reference)
    if failure is None:
        failure = find_bad_sound(checks, result.audio.size / result.sample_rate, expected_s, limits)
    rounded = {name: round(figure, 3) for name, figure in checks.items()}
    return Examined(failure, measure(result.audio), rounded)


def _measure(audio: Audio, sample_rate_hz: int, expected_s: float, reference: Tail | None) -> dict[str, float]:
    silences = find_silences(audio, sample_rate_hz)
    checks = {
        "length_ratio": audio.size / sample_rate_hz / max(expected_s, 0.08),
        "head_silence_s": silences.head_s,
        "inner_silence_s": silences.inner_s,
        "tail_silence_s": silences.tail_s,
        "flatness": flatness(audio),
        "zero_crossings": zero_crossings(audio),
    }
    if reference is not None:
        checks["ref_correlation"] = reference.correlation(audio, sample_rate_hz)
    return checks


def find_bad_sound(
    checks: Mapping[str, float], length_s: float, expected_s: float, limits: CheckLimits
) -> Failure | None:
    """Say what is wrong with the figures of a clip of `length_s`, if anything is."""
    text = f"{length_s:.1f} s of audio for a text of about {expected_s:.1f} s"
    silence_s = max(checks["head_silence_s"], checks["inner_silence_s"], checks["tail_silence_s"])
    if _reaches(checks.get("ref_correlation"), limits.ref_correlation):
        return Failure("ref_leak", f"Contains the reference: correlation {checks['ref_correlation']:.2f}.")
    if _reaches(checks["flatness"], limits.noise_flatness):
        return Failure("noise_output", f"Is noise: its spectrum has a flatness of {checks['flatness']:.2f}.")
    if _reaches(silence_s, limits.long_silence_s):
        return Failure("long_silence", f"Contains {silence_s:.1f} s of continuous silence.")
    if limits.too_long_factor is not None and length_s > max(
        expected_s * limits.too_long_factor, limits.too_long_floor_s or 0.0
    ):
        return Failure("too_long_for_text", f"{text}.")
    is_long_text = expected_s > (limits.too_short_floor_s or 0.0)
    if limits.too_short_factor is not None and is_long_text and length_s < expected_s * limits.too_short_factor:
        return Failure("too_short_for_text", f"{text}.")
    return None


def _reaches(figure: float | None, limit: float | None) -> bool:
    """Whether a figure that was measured reaches a limit that is set; 0 is the strictest."""
    return figure is not None and limit is not None and figure >= limit


def find_fault(
    result: SpeechResult, max_frames: int, silent_peak_dbfs: float | None = _DEFAULTS.silent_peak_dbfs
) -> Failure | None:
    """Say why `result` is no clip at all, or None when it is one. No engine is trusted."""
    ended = result.finish_reason
    if ended not in _FINISH_REASONS:
        return Failure("engine_error", f"The engine returned finish_reason {ended!r}, not one of {_FINISH_REASONS}.")
    if ended == "error":
        return Failure(_known_reason(result.reason), result.error or "The engine gave no message.")
    if ended == "cancelled":
        return Failure("cancelled", "The engine aborted the row.")
    if result.num_frames > max_frames:
        return Failure("engine_error", f"The engine made {result.num_frames} frames, over the budget of {max_frames}.")
    if ended == "loop":
        return Failure("repetitive_generation", f"The speech repeats itself ({result.num_frames} frames).")
    if ended == "length" or (result.num_frames == max_frames and not result.eos):
        message = f"No end of speech within the budget of {max_frames} frames"
        return Failure("codec_budget_exhausted", f"{message}: --attempts draws again, --max-frames raises it.")
    return find_broken_audio(result) or _find_silence(result.audio, silent_peak_dbfs)


def find_broken_audio(result: SpeechResult) -> Failure | None:
    """Say why the result's audio is no waveform at all, or None when it is one."""
    audio = result.audio
    if audio is None or np.size(audio) == 0:
        return Failure("empty_audio", "The engine returned no samples.")
    if audio.ndim != 1 or result.sample_rate <= 0:
        return Failure("engine_error", f"The engine returned shape {audio.shape} at {result.sample_rate} Hz, not mono.")
    finite = np.isfinite(audio)
    if not finite.all():
        bad = int(np.count_nonzero(~finite))
        return Failure("non_finite", f"{bad} of {audio.size} samples are not finite.")
    return None


def _find_silence(audio: Audio | None, silent_peak_dbfs: float | None) -> Failure | None:
    assert audio is not None, "find_broken_audio has seen it"
    if silent_peak_dbfs is None:
        return None
    peak_dbfs = dbfs(max(-float(audio.min()), float(audio.max())))
    if peak_dbfs < silent_peak_dbfs:
        return Failure("silent_output", f"The loudest sample is at {peak_dbfs:.0f} dBFS, under {silent_peak_dbfs:.0f}.")
    return None


def _known_reason(reason: str | None) -> Reason:
    return next((known for known in REASONS if known == reason), "engine_error")
