"""A clip plays, saves and explains itself."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tts_batch.clip import Clip
from tts_batch.records import Failure

WAVE = np.sin(np.arange(2400, dtype=np.float32) / 10) * np.float32(0.5)
SILENCE = np.zeros(0, np.float32)


def test_saving_keeps_samples_and_rate(tmp_path: Path) -> None:
    path = Clip("a", "Hello", WAVE, 24_000).save(tmp_path / "a.wav")
    audio, rate_hz = soundfile.read(path, dtype="float32")
    assert rate_hz == 24_000
    np.testing.assert_allclose(audio, WAVE, atol=1 / 32_000)


def test_a_notebook_gets_a_player_with_the_audio() -> None:
    clip = Clip("a", "1 < 2 & so on", WAVE, 24_000)
    page = clip._repr_html_()
    assert "1 &lt; 2 &amp; so on" in page
    source = re.search(r'src="data:audio/wav;base64,([^"]+)"', page)
    assert source is not None
    assert soundfile.info(io.BytesIO(base64.b64decode(source[1]))).frames == WAVE.size


def test_a_failed_clip_says_why_and_cannot_be_saved(tmp_path: Path) -> None:
    clip = Clip("a", "<b>", SILENCE, 24_000, failure=Failure("bad_speaker", "no speaker 'x'"))
    assert repr(clip) == "Clip('a', bad_speaker)"
    assert "bad_speaker" in clip._repr_html_()
    assert "<audio" not in clip._repr_html_()
    with pytest.raises(ValueError, match="no speaker 'x'"):
        clip.save(tmp_path / "a.wav")
    assert not (tmp_path / "a.wav").exists()


def test_duration() -> None:
    assert Clip("a", "", WAVE, 24_000).duration_s == pytest.approx(0.1)
    assert repr(Clip("a", "", WAVE, 24_000)) == "Clip('a', 0.10 s)"
