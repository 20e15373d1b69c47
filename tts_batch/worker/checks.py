"""What a waveform must be to count as a clip: the engine's own account first, then what can be heard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from tts_batch.choices import CheckName
from tts_batch.engine.request import SpeechResult
from tts_batch.errors import REASONS, Reason
from tts_batch.records import Failure
from tts_batch.store.clips import ClipFiles
from tts_batch.worker.sound import Audio, Levels, Tail, dbfs, find_silences, flatness, measure, zero_crossings

__all__ = [
    "CheckLimits",
    "Examined",
    "Levels",
    "examine",
    "find_bad_sound",
    "find_broken_audio",
    "find_fault",
    "measure",
]

SILENT_PEAK_DBFS = -60.0
_FINISH_REASONS = ("stop", "length", "loop", "error", "cancelled")


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """Where a clip fails; None turns a check off. The expected length is that of the text at a normal pace."""

    silent_peak_dbfs: float | None = SILENT_PEAK_DBFS  # silent_output: no sample is louder
    too_long_factor: float | None = 3.0  # too_long_for_text: so many times the expected length …
    too_long_floor_s: float | None = 8.0  # … and longer than this, whatever the text
    too_short_factor: float | None = 0.2  # too_short_for_text: less than this share of the expected length …
    too_short_floor_s: float | None = 2.0  # … of a text that is expected to be longer than this
    long_silence_s: float | None = 5.0  # long_silence: before, between or after the sounds
    noise_flatness: float | None = 0.5  # noise_output: spectra as flat; white noise has 0.56
    ref_correlation: float | None = 0.7  # ref_leak: of the clip's head with the last second of the reference

    @classmethod
    def of(cls, given: Mapping[CheckName, float | None], *, speaks: bool = True) -> CheckLimits:
        """Return the defaults, changed by what is `given`. A model that does not speak has no length to expect."""
        lengths: dict[CheckName, float | None] = {} if speaks else {"too_long_factor": None, "too_short_factor": None}
        return cls(**{**lengths, **given})

    def to_dict(self) -> dict[str, float | None]:
        return {limit.name: getattr(self, limit.name) for limit in fields(self)}


@dataclass(frozen=True, slots=True)
class Examined:
    """A result with everything that was measured of it."""

    failure: Failure | None
    levels: Levels | None = None
    checks: dict[str, Any] = field(default_factory=dict)  # what → figure, as the manifest keeps it
    files: ClipFiles | None = None  # of a good clip that was encoded along


def examine(
    result: SpeechResult, max_frames: int, expected_s: float, limits: CheckLimits, reference: Tail | None = None
) -> Examined:
    """Hold `result` against the limits; `expected_s` is the length of its text at a normal pace. No engine is trusted.

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
    if (limits.ref_correlation or np.inf) <= checks.get("ref_correlation", 0.0):
        return Failure("ref_leak", f"The reference is heard in it: correlation {checks['ref_correlation']:.2f}.")
    if (limits.noise_flatness or np.inf) <= checks["flatness"]:
        return Failure("noise_output", f"It is noise: its spectrum has a flatness of {checks['flatness']:.2f}.")
    if (limits.long_silence_s or np.inf) <= silence_s:
        return Failure("long_silence", f"It is silent for {silence_s:.1f} s on end.")
    if length_s > max(expected_s * (limits.too_long_factor or np.inf), limits.too_long_floor_s or 0.0):
        return Failure("too_long_for_text", f"{text}.")
    if expected_s > (limits.too_short_floor_s or 0.0) and length_s < expected_s * (limits.too_short_factor or 0.0):
        return Failure("too_short_for_text", f"{text}.")
    return None


def find_fault(
    result: SpeechResult, max_frames: int, silent_peak_dbfs: float | None = SILENT_PEAK_DBFS
) -> Failure | None:
    """Say why `result` is no clip at all, or None when it is one. No engine is trusted."""
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
