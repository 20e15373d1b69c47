"""Silence off the edges of clips: by the clip's own level, with a margin, never more than silence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from tests.run.support import make_config, read_manifest
from tts_batch.engine.request import SpeechResult
from tts_batch.errors import UsageError
from tts_batch.run.job import run_job
from tts_batch.worker.finish import trim

Fake = Callable[..., None]
RATE = 24_000


def tone(seconds: float, dbfs: float = -10.0) -> np.ndarray:
    time_s = np.arange(round(seconds * RATE)) / RATE
    return (10 ** (dbfs / 20) * np.sin(2 * np.pi * 180 * time_s)).astype(np.float32)


def silence(seconds: float, dbfs: float | None = None) -> np.ndarray:
    """Zeros, or the noise floor of a codec under the sound."""
    level = 0.0 if dbfs is None else 10 ** (dbfs / 20)
    return (level * np.random.default_rng(0).standard_normal(round(seconds * RATE))).astype(np.float32)


def trimmed(*parts: np.ndarray, margin_s: float = 0.1) -> tuple[np.ndarray, dict[str, float]]:
    whole = SpeechResult("a", np.concatenate(parts), RATE, None, 5, "stop", True)
    result, removed = trim(whole, margin_s)
    assert result.audio is not None
    assert result.num_frames == 5
    return result.audio, removed


@pytest.mark.parametrize("floor_dbfs", [None, -70.0])
def test_b20_edges_go_but_for_a_margin(floor_dbfs: float | None) -> None:
    head, sound, tail = silence(0.4, floor_dbfs), tone(1.0), silence(1.2, floor_dbfs)
    audio, removed = trimmed(head, sound, tail)
    assert removed == {"trimmed_head_s": 0.3, "trimmed_tail_s": 1.1}
    assert np.array_equal(audio, np.concatenate([head, sound, tail])[round(0.3 * RATE) : round(1.5 * RATE)])
    none_left, _ = trimmed(head, sound, tail, margin_s=0.0)
    assert np.array_equal(none_left, sound)
    more_than_there_is, removed = trimmed(head, sound, tail, margin_s=5.0)
    assert more_than_there_is.size == round(2.6 * RATE)
    assert removed == {"trimmed_head_s": 0.0, "trimmed_tail_s": 0.0}


def test_silence_within_stays() -> None:
    audio, _ = trimmed(tone(0.5), silence(2.0), tone(0.5))
    assert audio.size == round(3.0 * RATE)


@pytest.mark.parametrize("dbfs", [-50.0, -75.0])
def test_b59_a_quiet_voice_is_not_trimmed_to_nothing(dbfs: float) -> None:
    audio, removed = trimmed(silence(0.4, dbfs - 60.0), tone(1.0, dbfs), silence(0.6, dbfs - 60))
    assert audio.size == pytest.approx(1.2 * RATE, abs=0.02 * RATE)
    assert removed["trimmed_head_s"] == pytest.approx(0.3, abs=0.02)
    assert np.array_equal(trimmed(tone(1.0, dbfs))[0], tone(1.0, dbfs))


@pytest.mark.parametrize("audio", [None, np.zeros(0), np.zeros((2, 9)), np.array([0.1, np.nan]), np.zeros(5_000)])
def test_what_has_no_sound_is_left_to_the_checks(audio: np.ndarray | None) -> None:
    result = SpeechResult("a", audio, RATE, None, 5, "stop", True)
    after, removed = trim(result, 0.1)
    assert after.audio is audio or np.array_equal(after.audio, audio)
    assert set(removed.values()) <= {0.0}


@given(st.lists(st.tuples(st.floats(0.001, 0.3), st.floats(-80, 0) | st.none()), max_size=8), st.floats(0, 0.2))
def test_only_what_is_silent_against_the_rest_goes(parts: list[tuple[float, float | None]], margin_s: float) -> None:
    pieces = [silence(length_s) if dbfs is None else tone(length_s, dbfs) for length_s, dbfs in parts]
    audio = np.concatenate([np.full(1, 1e-4, np.float32), *pieces])
    after, removed = trimmed(audio, margin_s=margin_s)
    start = round(removed["trimmed_head_s"] * RATE)
    assert after.size > 0
    assert after.size / RATE + sum(removed.values()) == pytest.approx(audio.size / RATE, abs=0.002)
    gone = np.concatenate([audio[: max(0, start - 480)], audio[start + after.size + 480 :]])
    assert np.abs(gone).max(initial=0.0) <= np.abs(audio).max() * 0.15  # a window's peak is above its power


def test_clips_are_untouched_unless_asked_for(tmp_path: Path, fake: Fake) -> None:
    fake(edges_s=[0.4, 1.2])
    config = make_config(tmp_path, 2)
    run_job(config)
    plain = read_manifest(config.out)
    with pytest.raises(UsageError, match=r"trim was not given, and is on now"):
        run_job(make_config(tmp_path, 2, trim=True))
    cut = make_config(tmp_path, 2, trim=True, save_codes=True, out=tmp_path / "cut")
    assert run_job(cut).ok == 2
    for before, after in zip(plain, read_manifest(cut.out), strict=True):
        assert after["duration_s"] == pytest.approx(before["duration_s"] - 1.4, abs=0.02)
        checks = json.loads(after["checks"])
        assert checks["trimmed_head_s"] == pytest.approx(0.3, abs=0.02)
        assert checks["trimmed_tail_s"] == pytest.approx(1.1, abs=0.02)
        assert checks["head_silence_s"] == pytest.approx(0.1, abs=0.02)
        assert json.loads(before["checks"])["head_silence_s"] == pytest.approx(0.4, abs=0.02)
        assert "trimmed_head_s" not in json.loads(before["checks"])
        assert after["fingerprint"] != before["fingerprint"]
        assert after["seed"] == before["seed"]
        assert soundfile.info(cut.out / after["audio"]).duration == pytest.approx(after["duration_s"])
        assert np.load(cut.out / after["codes"]).shape[0] == after["num_frames"] == before["num_frames"]


def test_what_is_trimmed_is_judged_as_it_is_written(tmp_path: Path, fake: Fake) -> None:
    fake(edges_s=[0.1, 6.0])
    assert run_job(make_config(tmp_path, 1)).reasons == {"long_silence": 1}
    assert run_job(make_config(tmp_path, 1, trim=True, out=tmp_path / "cut")).ok == 1
