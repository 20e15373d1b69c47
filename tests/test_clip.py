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


FORMATS = {
    "a.wav": "WAV",
    "A.WAV": "WAV",
    "b": "WAV",
    "c.flac": "FLAC",
    "d.mp3": "MP3",
    "e.opus": "OGG",
    "f.ogg": "OGG",
}


@pytest.mark.parametrize(("name", "container"), FORMATS.items())
def test_the_suffix_names_the_format(tmp_path: Path, name: str, container: str) -> None:
    info = soundfile.info(Clip("a", "Hello", WAVE, 24_000).save(tmp_path / name))
    assert (info.format, info.channels, info.samplerate) == (container, 1, 24_000)


@pytest.mark.parametrize("name", ["a.m4a", "a.mp4", "a.webm", "a.txt", "a.1"])
def test_another_suffix_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"a clip is saved as \.wav, \.flac, \.mp3, \.opus, \.ogg"):
        Clip("a", "Hello", WAVE, 24_000).save(tmp_path / name)
    assert not list(tmp_path.iterdir())


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
