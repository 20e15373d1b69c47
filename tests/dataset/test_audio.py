"""Reference recordings in every usual form become the same float32 mono at 24 kHz, or a typed error."""

from __future__ import annotations

import errno
import io
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from io import FileIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from tts_batch.dataset import audio
from tts_batch.dataset.audio import content_key, examine_reference, load_reference, probe_reference, resample
from tts_batch.dataset.sniff import find_ffmpeg, sniff
from tts_batch.errors import RowError
from tts_batch.records import RefAudio

Samples = NDArray[np.float32]
Tone = Callable[..., Samples]


def encoded(samples: NDArray[Any], rate_hz: int = 24_000, kind: str = "WAV", subtype: str = "FLOAT") -> bytes:
    sheet = io.BytesIO()
    soundfile.write(sheet, samples, rate_hz, format=kind, subtype=subtype)
    return sheet.getvalue()


def from_bytes(data: bytes) -> RefAudio:
    return RefAudio(data=data, label="sha256:x")


def from_array(samples: Any, rate_hz: int = 24_000) -> RefAudio:
    return RefAudio(array=samples, sampling_rate_hz=rate_hz, label="sha256:x")


def reason_of(ref: RefAudio, call: Callable[[RefAudio], Any] = load_reference) -> str:
    with pytest.raises(RowError) as caught:
        call(ref)
    return caught.value.reason


def pitch_hz(samples: Samples) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(samples.size)))
    return float(spectrum.argmax() * 24_000 / samples.size)


def test_b56_channels_are_averaged_in_every_form(tone: Tone) -> None:
    mono = tone(4.0)
    stereo = np.stack([mono * 1.5, mono * 0.5], axis=1)
    six = np.repeat(mono[:, None], 6, axis=1)
    for ref in (
        from_bytes(encoded(stereo)),
        from_bytes(encoded(six)),
        from_array(stereo),
        from_array(stereo.T),
        from_array(six.T),
        from_array(mono[None]),
    ):
        samples = load_reference(ref)
        assert samples.dtype == np.float32 and samples.shape == mono.shape
        np.testing.assert_allclose(samples, mono, atol=1e-7)


def test_shapes_that_are_no_recording() -> None:
    assert reason_of(from_array(np.zeros((40, 50)))) == "ref_unreadable"
    assert reason_of(from_array(np.zeros((2, 2, 9)))) == "ref_unreadable"


@pytest.mark.parametrize(
    ("subtype", "tolerance"), [("PCM_U8", 8e-3), ("PCM_16", 4e-5), ("PCM_24", 1e-6), ("PCM_32", 1e-6)]
)
def test_b57_integer_files_are_scaled_by_their_range(tone: Tone, subtype: str, tolerance: float) -> None:
    np.testing.assert_allclose(load_reference(from_bytes(encoded(tone(), subtype=subtype))), tone(), atol=tolerance)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.uint8, np.uint16, np.float64, np.float16])
def test_b57_arrays_are_scaled_by_their_type(tone: Tone, dtype: Any) -> None:
    samples = tone().astype(np.float64)
    if np.issubdtype(dtype, np.integer):
        half = 2.0 ** (8 * np.dtype(dtype).itemsize - 1)
        samples = np.round(samples * (half - 1)) + (half if np.issubdtype(dtype, np.unsignedinteger) else 0)
    np.testing.assert_allclose(load_reference(from_array(samples.astype(dtype))), tone(), atol=1e-2)


@pytest.mark.parametrize("bits", [16, 32])
def test_b57_plain_python_integers_are_scaled_by_what_holds_them(tone: Tone, bits: int) -> None:
    cells = [round(float(x) * 2 ** (bits - 1)) for x in tone() * 2]
    np.testing.assert_allclose(load_reference(from_array(np.asarray(cells))), tone() * 2, atol=1e-4)


def test_b57_loud_floats_are_brought_down_with_a_warning(tone: Tone, caplog: pytest.LogCaptureFixture) -> None:
    samples = tone(4.0)
    loud = samples * (2.4 / np.abs(samples).max())
    loaded = load_reference(from_bytes(encoded(loud)))
    np.testing.assert_allclose(loaded, loud / 2.4, atol=1e-6)
    assert "scaled down" in caplog.text


@pytest.mark.parametrize(
    ("seconds", "reason"),
    [(0.0, "ref_too_short"), (0.01, "ref_too_short"), (0.3, "ref_too_short"), (1.0, None), (4.0, None)],
)
def test_b58_short_references(tone: Tone, caplog: pytest.LogCaptureFixture, seconds: float, reason: str | None) -> None:
    ref = from_bytes(encoded(tone(seconds)))
    if reason is not None:
        assert reason_of(ref) == reason_of(ref, probe_reference) == reason
        return
    assert load_reference(ref).size == probe_reference(ref) * 24_000  # type: ignore[operator]
    assert ("lasts" in caplog.text) == (seconds < 3)


def test_b59_quiet_passes_and_silence_does_not(tone: Tone, caplog: pytest.LogCaptureFixture) -> None:
    quiet = tone(4.0) / np.abs(tone(4.0)).max() * np.float32(10 ** (-50 / 20))
    np.testing.assert_array_equal(load_reference(from_bytes(encoded(quiet))), quiet)
    assert "quiet" in caplog.text
    dither = np.random.default_rng(0).integers(-1, 2, 96_000).astype(np.int16)
    for silent in (np.zeros(96_000), np.full(96_000, 0.5), dither):
        assert reason_of(from_array(silent)) == "ref_silent"


def test_b60_long_references_are_refused_not_cut(tone: Tone, caplog: pytest.LogCaptureFixture) -> None:
    assert load_reference(from_array(tone(120.0, 8000), 8000)).size == 120 * 24_000
    assert "lasts 120.0 s" in caplog.text
    for ref in (from_array(tone(121.0, 8000), 8000), from_bytes(encoded(tone(121.0, 8000), 8000))):
        assert reason_of(ref) == reason_of(ref, probe_reference) == "ref_too_long"


def test_b25_the_message_has_the_numbers(tone: Tone) -> None:
    with pytest.raises(RowError, match=r"600 s, more than the 120 s allowed \(7500 codec frames\)"):
        probe_reference(from_array(tone(600.0, 1000), 1000))


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 22_050, 44_100, 48_000])
def test_b61_any_rate_keeps_its_pitch(tone: Tone, rate_hz: int) -> None:
    samples = load_reference(from_bytes(encoded(tone(4.0, rate_hz), rate_hz)))
    assert 0 <= samples.size - 4 * 24_000 <= 1  # librosa rounds up
    assert pitch_hz(samples) == pytest.approx(180, abs=0.5)


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 16_000, 22_050, 44_100, 48_000, 96_000])
def test_resampling_is_librosas(tone: Tone, rate_hz: int) -> None:
    import librosa

    for samples in (tone(1.0, rate_hz), tone(1.0, rate_hz)[:-7]):
        ours, theirs = resample(samples, rate_hz), librosa.resample(samples, orig_sr=rate_hz, target_sr=24_000)
        assert ours.dtype == theirs.dtype == np.float32
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.filterwarnings("ignore:'.*' is deprecated and slated for removal:DeprecationWarning")
def test_stereo_files_are_read_as_librosa_reads_them(tone: Tone, tmp_path: Path) -> None:
    import librosa

    path = tmp_path / "a.wav"
    soundfile.write(path, np.stack([tone(4.0), tone(4.0)[::-1]], axis=1), 24_000, subtype="PCM_16")
    theirs, _ = librosa.load(path, sr=None, mono=True)
    np.testing.assert_array_equal(load_reference(RefAudio(path=str(path))), theirs)


@pytest.mark.parametrize(("kind", "subtype"), [("MP3", "MPEG_LAYER_III"), ("FLAC", "PCM_24"), ("OGG", "VORBIS")])
@pytest.mark.parametrize("name", ["a.wav", "a.raw", "no_suffix", "a.mp3"])
def test_b62_content_counts_not_the_suffix(tone: Tone, tmp_path: Path, kind: str, subtype: str, name: str) -> None:
    data = encoded(tone(4.0), kind=kind, subtype=subtype)
    (tmp_path / name).write_bytes(data)
    ref = RefAudio(path=str(tmp_path / name), label=name)
    assert probe_reference(ref) == pytest.approx(4.0, abs=0.1)
    assert pitch_hz(load_reference(ref)) == pytest.approx(180, abs=0.5)
    np.testing.assert_array_equal(load_reference(ref), load_reference(from_bytes(data)))


@pytest.mark.parametrize(
    ("data", "found", "at_plan_time"),
    [
        (b"<!DOCTYPE html><html>404</html>", "a web page", True),
        (b'{"error": 404}', "JSON", True),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "a Git LFS pointer", True),
        (b"just words", "text", True),
        (b"PK\x03\x04rest", "a ZIP archive", True),
        (b"", "an empty file", True),
        (b"\x00\x00\x00\x20ftypM4A \x00\x00\x00\x00", "an MP4 or M4A file", False),
        (bytes(range(200)), "a file of unknown kind", False),
    ],
)
def test_b62_what_cannot_be_decoded_is_named(tmp_path: Path, data: bytes, found: str, at_plan_time: bool) -> None:
    (tmp_path / "a.wav").write_bytes(data)
    ref = RefAudio(path=str(tmp_path / "a.wav"), label="a.wav")
    with pytest.raises(RowError, match=found) as caught:
        load_reference(ref)
    assert caught.value.reason == "ref_unreadable"
    if at_plan_time:
        assert reason_of(ref, probe_reference) == "ref_unreadable"
    else:
        assert probe_reference(ref) is None


FFMPEG = """#!{python}
import io
import sys
import soundfile
assert sys.argv[sys.argv.index("-protocol_whitelist") + 1] == "file"
formats = sys.argv[sys.argv.index("-format_whitelist") + 1].split(",")
assert "mov" in formats and not {{"hls", "concat", "dash"}} & set(formats)
data = open(sys.argv[sys.argv.index("-i") + 1], "rb").read()
assert data.startswith(b"....ftypM4A "), "not mine"
sheet = io.BytesIO()
soundfile.write(sheet, [[0.25, 0.75], [-0.25, -0.75]] * 20_000, 16_000, format="WAV", subtype="FLOAT")
wav = sheet.getvalue()
at = wav.index(b"data") + 4
unknown = b"\\xff" * 4  # what a pipe's end cannot go back to fill in
sys.stdout.buffer.write(wav[:4] + unknown + wav[8:at] + unknown + wav[at + 4 :])
"""


def test_b62_what_libsndfile_does_not_read_goes_to_ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = tmp_path / "ffmpeg"
    stand_in.write_text(FFMPEG.format(python=sys.executable))
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    samples = load_reference(from_bytes(b"....ftypM4A rest"))
    assert samples.size == 60_000 and 0.4 < np.abs(samples).max() < 0.6
    assert reason_of(from_bytes(b"....ftypother")) == "ref_unreadable"
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RowError, match="install ffmpeg, or save it as WAV") as caught:
        load_reference(from_bytes(b"....ftypM4A rest"))
    assert caught.value.reason == "ref_unreadable"


@pytest.fixture
def _ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put ffmpeg on PATH, from the package that brings it, where the machine has none."""
    if find_ffmpeg() is None:
        import imageio_ffmpeg

        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "ffmpeg").symlink_to(imageio_ffmpeg.get_ffmpeg_exe())
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)


@pytest.mark.usefixtures("_ffmpeg")
@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        ("webm", ["-c:a", "libopus"]),  # as a browser records it: a stream, without its length
        ("m4a", ["-c:a", "aac"]),
        ("mka", ["-c:a", "flac"]),
        ("wma", ["-c:a", "wmav2"]),
        ("mp4", ["-c:a", "aac"]),
        ("ac3", []),
        ("eac3", []),
        ("tta", []),
        ("aac", []),
        ("mov", ["-c:a", "pcm_s16le"]),
    ],
)
def test_what_ffmpeg_reads_is_read(tone: Tone, tmp_path: Path, suffix: str, options: list[str]) -> None:
    path = tmp_path / f"a.{suffix}"
    target = ["-f", "webm", "-"] if suffix == "webm" else [str(path)]
    command = ["ffmpeg", "-v", "error", "-i", "-", *options, *target]
    made = subprocess.run(command, input=encoded(tone(4.0)), capture_output=True, check=True)
    if suffix == "webm":
        path.write_bytes(made.stdout)
    whole, part = load_reference(RefAudio(path=str(path))), load_reference(RefAudio(path=f"{path}#t=1,3"))
    assert whole.size == pytest.approx(96_000, abs=2500) and part.size == 48_000
    assert pitch_hz(whole) == pytest.approx(180, abs=1) and pitch_hz(part) == pytest.approx(180, abs=1)


@pytest.mark.usefixtures("_ffmpeg")
@pytest.mark.parametrize("size", [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f"])
def test_a_wav_stream_without_its_length_is_read(tone: Tone, size: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(tone(4.0), subtype="PCM_16")
    place = data.index(b"data") + 4
    ref = from_bytes(data[:4] + size + data[8:place] + size + data[place + 4 :])
    assert load_reference(ref).size == 96_000 and probe_reference(ref) in (None, 4.0)
    if size == bytes(4):
        monkeypatch.setenv("PATH", "")
        with pytest.raises(RowError, match=r"\(its header says that it holds no samples\): install ffmpeg, or save"):
            load_reference(ref)
    assert reason_of(from_bytes(data[: place + 4])) == "ref_too_short"


def test_a_truncated_file_is_refused(tone: Tone) -> None:
    assert reason_of(from_bytes(encoded(tone(4.0), kind="FLAC", subtype="PCM_16")[:3000])) in {
        "ref_unreadable",
        "ref_too_short",
    }


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_finite(tone: Tone, bad: float) -> None:
    samples = tone(4.0)
    samples[5] = bad
    assert reason_of(from_array(samples)) == reason_of(from_bytes(encoded(samples))) == "ref_non_finite"


def test_one_look_finds_what_two_do(tone: Tone, tmp_path: Path) -> None:
    file = tmp_path / "voice.wav"
    soundfile.write(file, tone(2.0), 24_000)
    for ref in (RefAudio(path=str(file), label="voice.wav"), RefAudio(data=file.read_bytes(), label="sha256:12")):
        assert examine_reference(ref) == (probe_reference(ref), content_key(ref))
    found = examine_reference(RefAudio(path=str(file)))
    soundfile.write(file, tone(3.0), 24_000)  # seen though it was read before
    changed = examine_reference(RefAudio(path=str(file)))
    assert changed[0] == 3.0
    assert changed[1] != found[1]


@pytest.mark.parametrize("call", [load_reference, probe_reference, examine_reference, content_key])
def test_paths_that_are_no_files(tmp_path: Path, call: Callable[[RefAudio], Any]) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, reason in [("gone.wav", "ref_missing"), ("", "ref_unreadable"), ("pipe", "ref_unreadable")]:
        assert reason_of(RefAudio(path=str(tmp_path / path), label=path), call) == reason
    assert reason_of(RefAudio(path="/dev/zero", label="z"), call) == "ref_unreadable"
    assert reason_of(RefAudio(path=str(tmp_path / ("x" * 300)), label="x"), call) == "ref_missing"


def test_what_the_disk_does_not_give_may_come_later(tmp_path: Path) -> None:
    unreadable = "/proc/self/mem"  # the first page of a process's memory is never there
    for call, path, said in [
        (content_key, unreadable, "cannot be read: Input/output error"),
        (content_key, str(tmp_path / "gone"), "is not there"),
        (load_reference, str(tmp_path / "gone"), "is not there"),
    ]:
        with pytest.raises(RowError, match=said) as caught:
            call(RefAudio(path=path, label="a"))
        assert caught.value.transient
        assert pickle.loads(pickle.dumps(caught.value)).transient
    with pytest.raises(RowError) as caught:
        load_reference(from_bytes(b"just words"))
    assert not caught.value.transient


def test_half_a_recording_is_none(tmp_path: Path, tone: Tone, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.wav").write_bytes(encoded(tone(4.0)))
    ref = RefAudio(path=str(tmp_path / "a.wav"), label="a")
    whole = load_reference(ref)
    reads = count()

    class Failing(FileIO):
        def readinto(self, buffer: Any) -> int | None:
            if next(reads) == 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().readinto(buffer)

    class Raw(audio._Raw, Failing):
        pass

    monkeypatch.setattr(audio, "_Raw", Raw)
    with pytest.raises(RowError, match="cannot be read"):
        load_reference(ref)
    assert next(reads) > 1
    assert np.array_equal(load_reference(ref), whole)


def test_a_good_reference_says_nothing(tone: Tone, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "tts_batch"):
        np.testing.assert_array_equal(load_reference(from_array(tone(4.0))), tone(4.0))
    assert not caplog.records


def test_sniff_of_an_encoded_file(tone: Tone) -> None:
    assert str(sniff(encoded(tone()))) == "a WAV file"
    assert str(sniff(encoded(tone(), kind="FLAC", subtype="PCM_16"))) == "a FLAC file"


def loud(samples: Samples) -> float:
    return float(np.sqrt(np.mean(np.square(samples))))


def test_channels_that_cancel_each_other_are_told_from_silence(tone: Tone, caplog: pytest.LogCaptureFixture) -> None:
    voice, noise = tone(4.0), np.random.default_rng(0).normal(0, 1e-3, 96_000).astype(np.float32)
    for other in (-voice, -0.98 * voice, -0.8 * voice, -voice + noise):
        caplog.clear()
        for channels in (np.stack([voice, other]), np.stack([other, voice], axis=1)):
            samples = load_reference(from_array(channels))
            assert loud(samples) == pytest.approx(loud(voice), rel=0.01)
            assert pitch_hz(samples) == pytest.approx(180, abs=0.5)
        assert "opposite phase" in caplog.text
    assert reason_of(from_array(np.zeros((96_000, 2)))) == "ref_silent"


def test_channels_that_do_not_cancel_are_averaged(tone: Tone, caplog: pytest.LogCaptureFixture) -> None:
    voice, silence = tone(4.0), np.zeros(96_000, np.float32)
    noise = np.random.default_rng(0).normal(0, 0.1, 96_000).astype(np.float32)
    late = np.roll(voice, 40)
    for channels in ([voice, silence], [voice, *[silence] * 7], [voice, noise], [voice, voice, -voice], [voice, late]):
        together = np.stack(channels)
        np.testing.assert_allclose(load_reference(from_array(together)), together.mean(axis=0), atol=1e-6)
    assert "opposite phase" not in caplog.text


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3"])
def test_a_part_of_a_recording_is_what_was_cut_out(tone: Tone, tmp_path: Path, kind: str) -> None:
    whole = np.concatenate([tone(4.0), tone(2.0)[::-1] * 0.5, tone(3.0)])
    subtype = {"WAV": "FLOAT", "FLAC": "PCM_24", "OGG": "VORBIS", "MP3": "MPEG_LAYER_III"}[kind]
    path = tmp_path / "long"
    path.write_bytes(encoded(whole, kind=kind, subtype=subtype))
    for fragment, first, last in (("#t=4,6", 4, 6), ("#t=,4", 0, 4), ("#t=6", 6, 9), ("#t=2.5,3.25", 2.5, 3.25)):
        ref = RefAudio(path=f"{path}{fragment}", label="long")
        samples = load_reference(ref)
        assert samples.size == pytest.approx((last - first) * 24_000, abs=3000)
        assert probe_reference(ref) == pytest.approx(last - first, abs=0.15)
        if kind in {"WAV", "FLAC"}:
            np.testing.assert_allclose(samples, whole[int(first * 24_000) : int(last * 24_000)], atol=1e-6)
    keys = {content_key(RefAudio(path=f"{path}{fragment}")) for fragment in ("", "#t=4,6", "#t=4.0,6.00", "#t=4,7")}
    assert len(keys) == 3


@pytest.mark.parametrize(
    ("fragment", "reason"),
    [("#t=4,9", "ref_too_short"), ("#t=5", "ref_too_short"), ("#t=1,1.2", "ref_too_short"), ("#t=3,4.3", None)],
)
def test_a_part_that_is_not_there(tone: Tone, tmp_path: Path, fragment: str, reason: str | None) -> None:
    (tmp_path / "a.wav").write_bytes(encoded(tone(4.0)))
    ref = RefAudio(path=f"{tmp_path}/a.wav{fragment}")
    if reason is None:  # lengths in lists are rounded
        assert load_reference(ref).size == 24_000 and probe_reference(ref) == 1.0
    else:
        assert reason_of(ref) == reason_of(ref, probe_reference) == reason


def test_a_file_may_be_called_like_a_part(tone: Tone, tmp_path: Path) -> None:
    (tmp_path / "a.wav#t=1,2").write_bytes(encoded(tone(4.0)))
    assert load_reference(RefAudio(path=f"{tmp_path}/a.wav#t=1,2")).size == 96_000


def test_a_recording_of_too_many_samples_is_refused_unread(
    tone: Tone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.wav").write_bytes(encoded(np.repeat(tone(4.0)[:, None], 8, axis=1)))
    ref = RefAudio(path=str(tmp_path / "a.wav"), label="a")
    assert load_reference(ref).size == 96_000
    monkeypatch.setattr(audio, "MAX_SAMPLES", 700_000)
    with pytest.raises(RowError, match="768000 samples in 8 channels of 24000 Hz"):
        load_reference(ref)
    assert load_reference(RefAudio(path=f"{ref.path}#t=0,2")).size == 48_000


@pytest.mark.parametrize("path", ["/proc/version", "/proc/self/environ", "/dev/null"])
def test_files_without_a_size_are_not_waited_for(path: str) -> None:
    for call in (load_reference, probe_reference, examine_reference):
        assert reason_of(RefAudio(path=path, label=path), call) == "ref_unreadable"


@pytest.mark.parametrize(
    ("written", "there"),
    [
        ("clips/A.WAV", "clips/a.wav"),
        ("Clips/a.wav", "clips/a.wav"),
        ("clips\\a.wav", "clips/a.wav"),
        ('"clips/a.wav"', "clips/a.wav"),
        ("clips/a.wav ", "clips/a.wav"),
        ("clips/a.flac", "clips/a.wav"),
        ("clips/a", "clips/a.wav"),
        ("clips/my%20voice.wav", "clips/my voice.wav"),
        ("clips/cafe\u0301.wav", "clips/caf\u00e9.wav"),
        ("clips/\uff41.wav", "clips/a.wav"),
        ("clips/\u200ba.wav", "clips/a.wav"),
        ("clips/my_voice.wav", "clips/my voice.wav"),
        ("clips/my+voice.wav", "clips/my voice.wav"),
        ("clips/my  voice.wav", "clips/my voice.wav"),
        ("clips/\u0430.wav", "clips/a.wav"),
        ("clips/tw\u043e", None),
        ("other/clips/a.wav", "clips/a.wav"),
        ("C:\\data\\clips\\a.wav", "clips/a.wav"),
        ("$HOME/clips/a.wav", "clips/a.wav"),
        ("clips/b.wav", None),
        ("other/a.wav", None),
    ],
)
def test_a_path_that_is_not_there_names_what_is_near(tmp_path: Path, written: str, there: str | None) -> None:
    (tmp_path / "clips").mkdir()
    for name in ("a.wav", "my voice.wav", "caf\u00e9.wav", "two.wav", "two.flac"):
        (tmp_path / "clips" / name).write_bytes(b"")
    with pytest.raises(RowError, match="is not there") as caught:
        load_reference(RefAudio(path=f"{tmp_path}/{written}", label=written))
    assert ("Near it is" in caught.value.message) == (there is not None)
    if there is not None:
        assert repr(f"{tmp_path}/{there}") in caught.value.message


def test_two_near_files_are_none(tmp_path: Path) -> None:
    (tmp_path / "two.wav").write_bytes(b"")
    (tmp_path / "two.flac").write_bytes(b"")
    with pytest.raises(RowError) as caught:
        load_reference(RefAudio(path=f"{tmp_path}/two.mp3", label="two.mp3"))
    assert "Near" not in caught.value.message
