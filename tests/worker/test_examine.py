"""What counts as a clip."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from tts_batch.choices import CheckName
from tts_batch.engine.request import SpeechResult
from tts_batch.ipc.messages import CheckLimits
from tts_batch.worker.examine import Examined, Tail, examine, find_fault, measure

GOOD = SpeechResult("a", np.full(100, 0.1, np.float32), 24_000, None, 5, "stop", True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"num_frames": 10}, None),  # the end token came right after the last frame of the budget
        ({"num_frames": 10, "eos": False}, "codec_budget_exhausted"),
        ({"num_frames": 11}, "engine_error"),
        ({"finish_reason": "length"}, "codec_budget_exhausted"),
        ({"finish_reason": "loop"}, "repetitive_generation"),
        ({"finish_reason": "cancelled"}, "cancelled"),
        ({"finish_reason": "done"}, "engine_error"),
        ({"finish_reason": "error", "reason": "ref_silent", "error": "It is silent."}, "ref_silent"),
        ({"finish_reason": "error", "reason": "no such reason"}, "engine_error"),
        ({"audio": None}, "empty_audio"),
        ({"audio": np.zeros(0, np.float32)}, "empty_audio"),
        ({"audio": np.zeros(100, np.float32)}, "silent_output"),
        ({"audio": np.full(100, 0.0009, np.float32)}, "silent_output"),
        ({"audio": np.full(100, 0.0011, np.float32)}, None),
        ({"audio": np.array([0.5, np.nan], np.float32)}, "non_finite"),
        ({"audio": np.array([0.5, np.inf], np.float32)}, "non_finite"),
        ({"audio": np.zeros((2, 100), np.float32)}, "engine_error"),
    ],
)
def test_find_fault(change: dict[str, object], reason: str | None) -> None:
    failure = find_fault(replace(GOOD, **change), max_frames=10)
    assert (failure.reason if failure else None) == reason
    assert failure is None or failure.message.endswith(".")


def test_a_budget_that_is_used_up_names_what_changes_it() -> None:
    failure = find_fault(replace(GOOD, finish_reason="length"), max_frames=10)
    assert failure is not None
    assert "10 frames" in failure.message
    assert "--max-frames" in failure.message


def test_measure() -> None:
    levels = measure(np.array([0.5, -0.5, 1.4, -1.0], np.float32))
    assert levels.peak == pytest.approx(1.4)
    assert levels.clipped_samples == 1
    assert levels.rms_dbfs == pytest.approx(20 * np.log10(np.sqrt((0.25 + 0.25 + 1.96 + 1) / 4)), abs=1e-5)
    assert measure(np.zeros(3, np.float32)).rms_dbfs == pytest.approx(-200)


RATE = 24_000


def tone(seconds: float, hz: float = 180.0) -> np.ndarray:
    time_s = np.arange(round(seconds * RATE)) / RATE
    return (0.3 * np.sin(2 * np.pi * hz * time_s) * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * time_s))).astype(np.float32)


def noise(seconds: float, level: float = 0.1) -> np.ndarray:
    return (level * np.random.default_rng(0).standard_normal(round(seconds * RATE))).astype(np.float32)


def silence(seconds: float) -> np.ndarray:
    return noise(seconds, 1e-6)


def voice(seconds: float, seed: int) -> np.ndarray:
    """A hum with a wandering pitch and syllables: nothing in it comes twice."""
    random = np.random.default_rng(seed)
    time_s = np.arange(round(seconds * RATE)) / RATE
    steps = np.arange(0, seconds + 0.2, 0.1)
    pitch, loud = (np.interp(time_s, steps, random.random(steps.size)) for _ in range(2))
    phase = 2 * np.pi * np.cumsum(120 + 30 * pitch) / RATE
    return (0.2 * loud * sum(np.sin(k * phase) / k for k in range(1, 8))).astype(np.float32)


def hum(seconds: float, seed: int) -> np.ndarray:
    """A voice that keeps one pitch, whatever it says: only its harmonics above 400 Hz change, every 0.1 s."""
    random = np.random.default_rng(seed)
    time_s = np.arange(round(seconds * RATE)) / RATE
    steps = np.arange(0, seconds + 0.2, 0.1)
    parts = [np.sin(2 * np.pi * 150 * time_s)]
    for harmonic in range(3, 14):
        parts.append(
            np.interp(time_s, steps, random.normal(0, 0.3, steps.size)) * np.sin(harmonic * 300 * np.pi * time_s)
        )
    return (0.2 * sum(parts)).astype(np.float32)


def examine_audio(
    audio: np.ndarray, expected_s: float, *, reference: np.ndarray | None = None, **limits: float | None
) -> Examined:
    result = replace(GOOD, audio=audio.astype(np.float32))
    tail = Tail(reference, RATE) if reference is not None else None
    return examine(result, 10, expected_s, CheckLimits.of(limits), tail)


@pytest.mark.parametrize(
    ("audio", "expected_s", "reason"),
    [
        (tone(2), 2.0, None),
        (noise(16), 0.5, "noise_output"),  # what a very short text may turn into
        (tone(16), 0.5, "too_long_for_text"),
        (tone(3), 0.3, None),  # a short text may take its time
        (tone(7.5), 0.3, None),
        (tone(20), 8.0, None),  # slow and sad speech
        (tone(0.3), 0.3, None),
        (tone(0.3), 6.0, "too_short_for_text"),
        (tone(2), 6.0, None),
        (np.zeros(48_000), 2.0, "silent_output"),
        (noise(2, 1e-5), 2.0, "silent_output"),
        (np.concatenate([tone(1), silence(6), tone(1)]), 4.0, "long_silence"),
        (np.concatenate([tone(1), silence(6)]), 4.0, "long_silence"),
        (np.concatenate([silence(0.4), tone(1), silence(1.2)]), 2.0, None),
        (np.concatenate([np.zeros(9_600), tone(1), np.zeros(28_800)]), 2.0, None),  # silence is not noise
        (tone(2) * 5, 2.0, None),  # clipped samples are counted, no more
    ],
)
def test_what_is_heard(audio: np.ndarray, expected_s: float, reason: str | None) -> None:
    examined = examine_audio(audio, expected_s)
    assert (examined.failure.reason if examined.failure else None) == reason
    assert examined.levels is not None
    assert set(examined.checks) >= {"length_ratio", "inner_silence_s", "flatness", "zero_crossings"}


def test_figures_are_true() -> None:
    checks = examine_audio(np.concatenate([silence(0.4), tone(1), silence(0.8), tone(1), silence(1.2)]), 2.0).checks
    assert checks["head_silence_s"] == pytest.approx(0.4, abs=0.03)
    assert checks["inner_silence_s"] == pytest.approx(0.8, abs=0.05)
    assert checks["tail_silence_s"] == pytest.approx(1.2, abs=0.03)
    assert checks["length_ratio"] == pytest.approx(2.2, abs=0.01)
    assert examine_audio(noise(3), 2.0).checks["flatness"] == pytest.approx(0.56, abs=0.02)
    assert examine_audio(noise(3), 2.0).checks["zero_crossings"] == pytest.approx(0.5, abs=0.02)
    assert examine_audio(voice(3, 1), 2.0).checks["flatness"] < 0.2


@pytest.mark.parametrize("limit", ["too_long_factor", "noise_flatness", "long_silence_s"])
def test_limits_are_set_and_turned_off(limit: str) -> None:
    audio = np.concatenate([noise(1), silence(20), noise(1)])
    others = dict.fromkeys({"too_long_factor", "noise_flatness", "long_silence_s"} - {limit})
    assert examine_audio(audio, 0.5, **others).failure is not None
    assert examine_audio(audio, 0.5, **others, **{limit: None}).failure is None
    assert examine_audio(audio, 0.5, **others, **{limit: 1_000.0}).failure is None


@pytest.mark.parametrize("leaked_s", [5.0, 1.5], ids=["all of it", "its tail"])
def test_a_reference_that_leaks_is_heard(leaked_s: float) -> None:
    reference, target = voice(5, 1), voice(4, 2)
    noisy = reference[-round(leaked_s * RATE) :] * 0.5 + noise(leaked_s, 0.005)
    leaking = examine_audio(np.concatenate([noisy, target]), 4.0, reference=reference)
    assert leaking.failure is not None
    assert leaking.failure.reason == "ref_leak"
    clean = examine_audio(target, 4.0, reference=reference)
    assert clean.failure is None
    assert clean.checks["ref_correlation"] < 0.5 < leaking.checks["ref_correlation"]
    assert examine_audio(target, 4.0, reference=reference[: RATE // 2]).checks["ref_correlation"] == 0.0


def test_a_voice_of_the_same_pitch_is_no_leak() -> None:
    reference = hum(4, 1)
    for seed in range(2, 12):
        assert examine_audio(hum(4, seed), 4.0, reference=reference).checks["ref_correlation"] < 0.5
    pause = silence(0.7)
    leaking = np.concatenate([0.1 * reference[-2 * RATE :], hum(4, 2)])
    examined = examine_audio(leaking, 6.0, reference=np.concatenate([reference, pause]))
    assert examined.failure is not None, "the pause at the reference's end hides it"
    assert examined.failure.reason == "ref_leak"


def shifted(audio: np.ndarray) -> np.ndarray:
    return np.interp(np.arange(0.5, audio.size - 1), np.arange(audio.size), audio)


def slowed(audio: np.ndarray) -> np.ndarray:
    return np.interp(np.arange(0, audio.size - 1, 0.9995), np.arange(audio.size), audio)


@pytest.mark.parametrize("change", [shifted, slowed, lambda audio: audio + noise(audio.size / RATE, 0.006)])
def test_a_leak_that_is_no_exact_copy_is_heard(change: Callable[[np.ndarray], np.ndarray]) -> None:
    reference = voice(5, 1)
    leaking = np.concatenate([change(reference[-2 * RATE :]), voice(4, 2)])
    assert examine_audio(leaking, 6.0, reference=reference).checks["ref_correlation"] > 0.84


@pytest.mark.parametrize(
    ("audio", "limits"),
    [
        (tone(2), {"long_silence_s": 0.0}),
        (tone(2), {"noise_flatness": 0.0}),
        (tone(2), {"silent_peak_dbfs": 0.0}),
        (tone(2), {"too_long_factor": 0.0, "too_long_floor_s": 0.0}),
        (tone(2), {"too_short_factor": 5.0, "too_short_floor_s": 0.0}),
        (tone(2), {"ref_correlation": 0.0}),
    ],
)
def test_a_message_names_figure_limit_and_option(audio: np.ndarray, limits: dict[str, float]) -> None:
    """0 is a limit like any other."""
    failure = examine_audio(audio, 2.0, reference=voice(3, 1), **limits).failure
    assert failure is not None
    name = next(iter(limits))
    assert re.search(rf" -?[0-9.]+( dBFS)?, limit {limits[name]:g} \(--check {name}=LIMIT or off\)\.$", failure.message)


def test_the_limits_of_the_configuration_are_these() -> None:
    assert set(get_args(CheckName)) == set(CheckLimits().to_dict())
    assert CheckLimits.of({}, speaks=False).too_short_factor is None
    assert CheckLimits.of({"too_short_factor": 0.5}, speaks=False).too_short_factor == 0.5
