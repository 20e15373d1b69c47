"""What a waveform must be to count as a clip: the engine's own account first, then what can be heard, in figures.

Loudness, silences, noise, and a reference that leaked into the clip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts_batch.choices import CheckName
from tts_batch.engine.request import SpeechResult
from tts_batch.errors import REASONS, Reason
from tts_batch.ipc.messages import CheckLimits
from tts_batch.records import Failure

Audio = NDArray[np.float32]

WINDOW_S = 0.02
QUIET_DB = 40.0  # a window so far under the loudest one is silence …
QUIET_DBFS = -70.0  # … and so is one under this, however quiet the rest
_SPECTRUM_SAMPLES = 1_024
_HANN = np.hanning(_SPECTRUM_SAMPLES).astype(np.float32)
_MAX_SPECTRA = 32  # spread over the clip: enough for a mean, and it costs the same for every clip

LEAK_RATE_HZ = 4_000
LEAK_S = 1.0
LEAK_SEARCH_S = 12.0
_LEAK_SAMPLES = round(LEAK_S * LEAK_RATE_HZ)
_LEAK_FROM_HZ = 300.0, 500.0  # under it a voice is little but its pitch, which a clone shares with its reference
_LEAK_BLOCKS = 8  # of the second, each of which may be half a millisecond early or late: clocks are off by 0.1 %

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
    factor = length_s / max(expected_s, 0.08)
    silence_s = max(checks["head_silence_s"], checks["inner_silence_s"], checks["tail_silence_s"])
    if _reaches(checks.get("ref_correlation"), limits.ref_correlation):
        return _over(
            "ref_leak", "Contains the reference: correlation", checks["ref_correlation"], "ref_correlation", limits
        )
    if _reaches(checks["flatness"], limits.noise_flatness):
        return _over("noise_output", "Is noise: spectral flatness", checks["flatness"], "noise_flatness", limits)
    if _reaches(silence_s, limits.long_silence_s):
        return _over("long_silence", "Seconds of continuous silence:", silence_s, "long_silence_s", limits)
    if limits.too_long_factor is not None and length_s > max(
        expected_s * limits.too_long_factor, limits.too_long_floor_s or 0.0
    ):
        return _over("too_long_for_text", f"{text}: factor", factor, "too_long_factor", limits)
    is_long_text = expected_s > (limits.too_short_floor_s or 0.0)
    if limits.too_short_factor is not None and is_long_text and length_s < expected_s * limits.too_short_factor:
        return _over("too_short_for_text", f"{text}: factor", factor, "too_short_factor", limits)
    return None


def _over(reason: Reason, what: str, figure: float, limit: CheckName, limits: CheckLimits) -> Failure:
    """Return the failure of a check, with the figure, its limit, and the option that changes it."""
    return Failure(reason, f"{what} {figure:.2f}, limit {getattr(limits, limit):g} ({_option(limit)}).")


def _option(limit: CheckName) -> str:
    return f"--check {limit}=LIMIT or off"


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
        where = f"The loudest sample is at {peak_dbfs:.1f} dBFS, limit {silent_peak_dbfs:g}"
        return Failure("silent_output", f"{where} ({_option('silent_peak_dbfs')}).")
    return None


def _known_reason(reason: str | None) -> Reason:
    return next((known for known in REASONS if known == reason), "engine_error")


# What can be heard


@dataclass(frozen=True, slots=True)
class Levels:
    """Loudness figures of a waveform; full scale is ±1."""

    peak: float
    rms_dbfs: float
    clipped_samples: int


def measure(audio: Audio) -> Levels:
    """Measure samples [samples]; there must be at least one, and all must be finite."""
    low, high = float(audio.min()), float(audio.max())
    # Not np.dot, here and below: BLAS would wake a thread on every core for each clip.
    rms = float(np.sqrt(np.einsum("i,i->", audio, audio) / audio.size))
    peak = max(-low, high)
    return Levels(peak, dbfs(rms), int(np.count_nonzero(np.abs(audio) > 1.0)) if peak > 1.0 else 0)


def dbfs(amplitude: float) -> float:
    return 20.0 * float(np.log10(max(amplitude, 1e-10)))  # silence: -200 dBFS, a number that every table can hold


@dataclass(frozen=True, slots=True)
class Silences:
    """Seconds: before the first sound, after the last, and the longest between two."""

    head_s: float
    tail_s: float
    inner_s: float


def find_silences(audio: Audio, sample_rate_hz: int) -> Silences:
    """Find the silences of samples [samples], in windows of 20 ms."""
    size = max(1, round(sample_rate_hz * WINDOW_S))
    windows = audio[: audio.size // size * size].reshape(-1, size)
    if not len(windows):
        return Silences(0.0, 0.0, 0.0)
    power = np.einsum("ij,ij->i", windows, windows, dtype=np.float32) / size
    threshold = max(float(power.max()) * 10 ** (-QUIET_DB / 10), 10 ** (QUIET_DBFS / 10))
    loud = np.flatnonzero(power > threshold)
    window_s = size / sample_rate_hz
    if not loud.size:
        return Silences(len(windows) * window_s, 0.0, 0.0)
    gap = int(np.diff(loud).max(initial=1)) - 1
    return Silences(int(loud[0]) * window_s, (len(windows) - 1 - int(loud[-1])) * window_s, gap * window_s)


def find_sound(audio: Audio, sample_rate_hz: int) -> tuple[int, int]:
    """Return where samples [samples] begin and end to sound, in windows of 20 ms; of nothing but zeros, the whole.

    However quiet a clip is, its own loudest window decides.
    """
    size = max(1, round(sample_rate_hz * WINDOW_S))
    windows = np.pad(audio, (0, -audio.size % size)).reshape(-1, size)
    power = np.einsum("ij,ij->i", windows, windows, dtype=np.float64)
    loud = np.flatnonzero(power > power.max() * 10 ** (-QUIET_DB / 10))
    return (int(loud[0]) * size, min((int(loud[-1]) + 1) * size, audio.size)) if loud.size else (0, audio.size)


def flatness(audio: Audio) -> float:
    """Return how flat the spectrum of samples [samples] is: 0 a tone, voices under 0.2, white noise 0.56.

    It is the mean over spectra of 1,024 samples of their geometric by their arithmetic mean; the quiet half of a clip
    does not count, nor does what is silent beside the rest. A clip of fewer samples has 0.
    """
    count = audio.size // _SPECTRUM_SAMPLES
    if not count:
        return 0.0
    blocks = audio[: count * _SPECTRUM_SAMPLES].reshape(count, _SPECTRUM_SAMPLES)
    if count > _MAX_SPECTRA:
        blocks = blocks[np.linspace(0, count - 1, _MAX_SPECTRA).astype(np.intp)]
    energy = np.einsum("ij,ij->i", blocks, blocks)
    heard = energy >= max(np.sort(energy)[energy.size // 2], energy.max() * 10 ** (-QUIET_DB / 10))
    power = np.square(np.abs(np.fft.rfft(blocks[heard] * _HANN)))[:, 1:] + 1e-12
    return float(np.mean(np.exp(np.log(power).mean(axis=1)) / power.mean(axis=1)))


def zero_crossings(audio: Audio) -> float:
    """Return the share of samples [samples] whose sign differs from the one before: voices under 0.2, noise 0.5."""
    negative = np.signbit(audio)
    return float(np.count_nonzero(negative[1:] != negative[:-1])) / max(audio.size - 1, 1)


class Tail:
    """The last second of a reference that sounds, to be recognised at the head of a clip by its waveform."""

    def __init__(self, reference: Audio, sample_rate_hz: int) -> None:
        """`reference`: samples [samples], of at least a second or it is never recognised."""
        self._length_s = reference.size / sample_rate_hz
        slow = _slow_down(reference[: find_sound(reference, sample_rate_hz)[1]], sample_rate_hz)
        tail = _high_pass(slow)[0][-_LEAK_SAMPLES:]
        norm = float(np.linalg.norm(tail))
        self._blocks = np.split(tail / norm, _LEAK_BLOCKS) if tail.size == _LEAK_SAMPLES and norm > 0 else []

    @property
    def searched_s(self) -> float:
        """How much of a clip's head is searched: a reference that leaked whole ends within it."""
        return min(self._length_s + LEAK_S, LEAK_SEARCH_S)

    def correlation(self, audio: Audio, sample_rate_hz: int) -> float:
        """Return the best correlation, 0..1, of the tail with any second of the head of samples [samples].

        Only what is above 400 Hz counts. The same words in the same pitch do not correlate, unless they are a copy.
        """
        slow = _slow_down(audio[: round(self.searched_s * sample_rate_hz)], sample_rate_hz)
        if not self._blocks or slow.size < _LEAK_SAMPLES:
            return 0.0
        head, spectrum = _high_pass(np.pad(slow, 1))
        count = slow.size - _LEAK_SAMPLES + 1  # places of the tail in it
        products = np.zeros(count, np.float32)
        size = _fft_size(head.size)
        analytic = np.zeros(size, np.complex64)
        for number, block in enumerate(self._blocks):
            analytic[: spectrum.size] = 2 * spectrum * np.conj(np.fft.rfft(block, size))
            product = np.abs(np.fft.ifft(analytic))[number * block.size :]  # whatever the phase
            products += reduce(np.maximum, (product[shift : shift + count] for shift in range(3)))
        energy = np.concatenate([[0.0], np.cumsum(np.square(head[1:], dtype=np.float64))])
        norms = np.sqrt(energy[_LEAK_SAMPLES:][:count] - energy[:count])
        norms[norms <= 0.002 * norms.max()] = np.inf  # what is silent correlates with anything
        return min(float(np.max(products / norms)), 1.0)


def _high_pass(audio: Audio) -> tuple[NDArray[np.floating], NDArray[np.complexfloating]]:
    """Return samples [samples] at 4 kHz without what is under 300 Hz, and their spectrum; from 500 Hz on all is kept.

    A sharper edge would ring, and hide what is quiet beside what is loud.
    """
    size = _fft_size(audio.size)
    spectrum = np.fft.rfft(audio, size)
    low, high = (round(edge_hz / LEAK_RATE_HZ * size) for edge_hz in _LEAK_FROM_HZ)
    spectrum[:low] = 0
    spectrum[low:high] *= np.sin(np.linspace(0, np.pi / 2, high - low, dtype=np.float32)) ** 2
    return np.fft.irfft(spectrum)[: audio.size], spectrum


def _fft_size(samples: int) -> int:
    return max(1 << (samples - 1).bit_length(), 2)


def _slow_down(audio: Audio, sample_rate_hz: int) -> Audio:
    """Average samples down to about 4 kHz: enough to tell one recording from another."""
    step = max(1, sample_rate_hz // LEAK_RATE_HZ)
    windows = audio[: audio.size // step * step].reshape(-1, step)
    return reduce(np.add, windows.T) / np.float32(step)  # faster than a sum over an axis of six, and no BLAS
