"""The Python API on the tiny model: the results of the command line."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import soundfile

import tts_batch
from tts_batch import CannotContinueError, Clip, RowError, Synthesizer, UsageError
from tts_batch.plan.seeds import derive_seed

ROWS = [
    {"id": "a", "text": "One.", "speaker": "ryan", "language": "en", "topic": 1},
    {"id": "b", "text": "Two.", "speaker": "nobody", "language": "en", "topic": 2},
    {"id": "c", "text": "Three.", "speaker": "vivian", "language": "en", "topic": 3},
]
QUICK = {"model": "tiny", "max_num_seqs": 4, "progress": "none"}


@pytest.fixture(scope="module")
def synthesizer() -> Iterator[Synthesizer]:
    with Synthesizer("tiny", device="cpu") as synthesizer:
        yield synthesizer


@pytest.fixture(scope="module")
def voice() -> np.ndarray:
    time_s = np.arange(24_000) / 16_000
    return (0.3 * np.sin(2 * np.pi * 130 * time_s) * (1 + np.sin(2 * np.pi * 3 * time_s)) / 2).astype(np.float32)


# synth


def test_rows_become_a_run_folder(tmp_path: Path) -> None:
    result = tts_batch.synth(ROWS, out=tmp_path / "out", **QUICK)
    assert (result.ok, result.failed) == (2, 1)
    manifest = result.manifest().select(["id", "status", "reason", "topic"]).to_pylist()
    assert [tuple(row.values()) for row in manifest] == [
        ("a", "ok", None, 1),
        ("b", "failed", "bad_speaker", 2),
        ("c", "ok", None, 3),
    ]
    assert result.failures()["id"].to_pylist() == ["b"]
    clips = list(result.clips())
    assert [clip.id for clip in clips] == ["a", "c"]
    assert clips[0].text == "One."
    assert clips[0].effective["speaker"] == "ryan"
    assert clips[0].duration_s == pytest.approx(result.manifest()["duration_s"][0].as_py())


def test_the_same_call_again_makes_nothing_twice(tmp_path: Path) -> None:
    tts_batch.synth(pd.DataFrame(ROWS[:1]), out=tmp_path / "out", **QUICK)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.wav")}
    result = tts_batch.synth(pd.DataFrame(ROWS[:1]), out=tmp_path / "out", **QUICK)
    assert (result.ok, result.summary.made) == (1, 0)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.wav")} == before
    longer = tts_batch.synth(ROWS, out=tmp_path / "out", **QUICK)
    assert (longer.ok, longer.failed, longer.summary.made) == (2, 1, 1)


def test_a_path_is_read_where_it_lies(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("id,text,speaker\nx,Hello.,ryan\n")
    result = tts_batch.synth(table, out=tmp_path / "out", **QUICK)
    assert result.manifest()["source"].to_pylist() == ["rows.csv:2"]
    assert not list((tmp_path / "out").glob("rows-*.parquet"))


def test_a_running_event_loop_is_no_hindrance(tmp_path: Path) -> None:
    async def notebook() -> int:
        return tts_batch.synth(ROWS[:1], out=tmp_path / "out", **QUICK).ok

    assert asyncio.run(notebook()) == 1


class Cell(io.TextIOBase):
    """What a notebook puts in place of the standard streams: it has no file number, and is no terminal."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)


@pytest.mark.parametrize("progress", ["auto", "bar", "plain"])
def test_streams_without_a_file_number_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: str) -> None:
    streams = Cell(), Cell()
    with pytest.raises(io.UnsupportedOperation):
        streams[0].fileno()
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    result = tts_batch.synth(ROWS[:1], out=tmp_path / "out", **{**QUICK, "progress": progress})
    assert (result.ok, streams[0].text) == (1, "")
    assert "1/1" in streams[1].text


def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import tts_batch\n"
        "print('top level')\n"
        "row = {'text': 'Hello.', 'speaker': 'ryan'}\n"
        "print(tts_batch.synth([row], out='out', model='tiny', progress='none').ok)\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "top level\n1\n", done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"temperature": -1}, "'temperature' cannot be -1"),
        ({"device": "gpu"}, "'device' cannot be 'gpu'"),
        ({"split_text": 5}, "'split_text' cannot be 5"),
        ({"split_pause_s": 0.5}, "'split_pause_s' changes nothing without 'split_text'"),
        ({"trim_margin_s": 0.5}, "'trim_margin_s' changes nothing without 'trim'"),
    ],
)
def test_a_wrong_option_starts_nothing(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        tts_batch.synth(ROWS, out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


# Synthesizer


def test_speak_is_repeatable_and_seeds_vary_it(synthesizer: Synthesizer) -> None:
    text = "Hello there, this is a longer sentence with some more words."  # a single word comes out alike
    first = synthesizer.speak(text, speaker="ryan", language="english")
    again = synthesizer.speak(text, speaker="ryan", language="english")
    other = synthesizer.speak(text, speaker="ryan", language="english", seed=5)
    assert first.sample_rate == 24_000
    assert first.audio.dtype == np.float32
    assert first.audio.size == first.num_frames * 1920 > 0
    np.testing.assert_array_equal(first.audio, again.audio)
    assert (first.seed, other.seed) == (again.seed, 5)
    assert first.audio.shape != other.audio.shape or not np.array_equal(first.audio, other.audio)


def test_speak_gives_the_clip_of_a_run(synthesizer: Synthesizer, tmp_path: Path) -> None:
    row = {"id": "same", "text": "The same clip by both doors.", "speaker": "ryan"}
    (clip,) = tts_batch.synth([row], out=tmp_path, **QUICK).clips()
    spoken = synthesizer.speak(**row)
    assert (spoken.id, spoken.seed, spoken.num_frames) == (clip.id, clip.seed, clip.num_frames)
    np.testing.assert_allclose(spoken.audio, clip.audio, atol=1e-3)


LONG = "This is a sentence of some forty characters. " * 3


def test_long_texts_are_split_and_clips_trimmed_by_both_doors(tmp_path: Path) -> None:
    row = {"id": "long", "text": LONG, "speaker": "ryan"}
    options = {"split_text": 50, "split_pause_s": 0.2, "trim": True, "trim_margin_s": 0.05}
    (clip,) = tts_batch.synth([row], out=tmp_path, **QUICK, **options).clips()
    with Synthesizer("tiny", device="cpu", **options) as synthesizer:
        spoken = synthesizer.speak(**row)
    assert (spoken.id, spoken.text, spoken.seed, spoken.num_frames) == (clip.id, LONG, clip.seed, clip.num_frames)
    assert spoken.audio.size <= spoken.num_frames * 1920 + 2 * 4800
    np.testing.assert_allclose(spoken.audio, clip.audio, atol=1e-3)


def test_a_piece_that_fails_is_named_and_the_rest_of_its_row_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = {"long\x1f2": "length", "long\x1f3": "endless", "lost\x1f2": "missing"}
    monkeypatch.setenv("FAKE_ENGINE", json.dumps({"faults": faults, "slots": 8}))
    rows = [
        {"id": name, "text": text, "speaker": "ryan"} for name, text in (("long", LONG), ("lost", LONG), ("b", "B."))
    ]
    options = {"device": "cpu", "split_text": 50, "row_time_limit": 2.0}
    with Synthesizer("tiny-random", engine="tests.fake_engine:create", **options) as synthesizer:
        clips = {clip.id: clip for clip in synthesizer.stream(rows)}
        assert synthesizer.speak(LONG, speaker="ryan").failure is None
    assert list(clips) == ["long", "b", "lost"]
    failures = {name: clip.failure for name, clip in clips.items() if clip.failure}
    assert {name: failure.reason for name, failure in failures.items()} == {
        "long": "codec_budget_exhausted",
        "lost": "time_limit",
    }
    assert failures["long"].message.startswith("Piece 2 of 3: ")
    assert clips["b"].audio.size > 0


@pytest.mark.parametrize("form", ["samples", "bytes", "path"])
def test_a_voice_comes_from_a_recording_in_any_form(
    form: str, voice: np.ndarray, synthesizer: Synthesizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    soundfile.write("voice.wav", voice, 16_000, subtype="FLOAT")
    forms = {"samples": (voice, 16_000), "bytes": Path("voice.wav").read_bytes(), "path": Path("voice.wav")}
    clip = synthesizer.speak("Cloned.", ref_audio=forms[form], x_vector_only=True, seed=np.int64(3))
    expected = synthesizer.speak("Cloned.", ref_audio=forms["samples"], x_vector_only=True, seed=3)
    np.testing.assert_allclose(clip.audio, expected.audio, atol=1e-4)


def test_samples_need_their_rate(voice: np.ndarray, synthesizer: Synthesizer) -> None:
    with pytest.raises(RowError, match=r"give \(samples, rate in hertz\)"):
        synthesizer.speak("Cloned.", ref_audio=voice, x_vector_only=True)
    listed = synthesizer.speak("Cloned.", ref_audio=(voice.tolist(), np.int64(16_000)), x_vector_only=True, seed=3)
    expected = synthesizer.speak("Cloned.", ref_audio=(voice, 16_000), x_vector_only=True, seed=3)
    np.testing.assert_allclose(listed.audio, expected.audio, atol=1e-4)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"temperature": 1}, "'temperature' .sampling is set for the whole run.; the known ones are id, text"),
        ({"langauge": "en", "mood": 1}, "'langauge' .did you mean 'language'....'mood'"),
    ],
)
def test_a_column_that_no_table_has_is_named(columns: dict[str, Any], words: str, synthesizer: Synthesizer) -> None:
    with pytest.raises(UsageError, match=words):
        synthesizer.speak("Hello.", speaker="ryan", **columns)
    late = [{"text": "Hello.", "speaker": "ryan"}, {"text": "Hello again.", "speaker": "ryan", **columns}]
    with pytest.raises(UsageError, match=words):
        list(synthesizer.stream(late))


def test_what_is_closed_stays_closed() -> None:
    with Synthesizer("tiny", device="cpu") as synthesizer:
        pass
    with pytest.raises(UsageError, match="is closed"):
        synthesizer.speak("Hello.", speaker="ryan")


def test_speak_raises_the_rows_reason(synthesizer: Synthesizer) -> None:
    with pytest.raises(RowError, match="nobody") as caught:
        synthesizer.speak("Hello.", speaker="nobody")
    assert caught.value.reason == "bad_speaker"
    with pytest.raises(RowError) as caught:
        synthesizer.speak(" ", speaker="ryan")
    assert caught.value.reason == "empty_text"


def test_a_stream_gives_every_row_once(synthesizer: Synthesizer) -> None:
    rows = [{"id": f"n{n}", "text": f"Number {n}.", "speaker": "ryan"} for n in range(6)]
    rows[2]["speaker"] = "nobody"
    rows.append({"id": "designed", "text": "Another model.", "instruct": "A low voice."})
    rows.append({"id": "n0", "text": "An id again.", "speaker": "ryan"})
    clips: list[Clip] = list(synthesizer.stream(rows))
    reasons = {clip.id: clip.failure.reason for clip in clips if clip.failure}
    assert sorted(clip.id for clip in clips) == sorted(row["id"] for row in rows)
    assert reasons == {"n2": "bad_speaker", "n0": "duplicate_id"}
    assert all(clip.audio.size for clip in clips if not clip.failure)


def test_a_stream_may_be_in_order(synthesizer: Synthesizer) -> None:
    texts = ["A much longer sentence than the others, so that it ends last.", "Two.", " ", "Four."]
    rows = [{"text": text, "speaker": "ryan"} for text in texts]
    clips = list(synthesizer.stream(rows, ordered=True))
    assert [clip.row_index for clip in clips] == [0, 1, 2, 3]
    assert [clip.text.strip() for clip in clips] == [text.strip() for text in texts]
    assert sorted(clip.row_index for clip in synthesizer.stream(rows)) == [0, 1, 2, 3]


def test_a_stream_may_be_endless_and_left(synthesizer: Synthesizer) -> None:
    rows = ({"text": f"Number {n}.", "speaker": "ryan"} for n in itertools.count())
    stream = synthesizer.stream(rows)
    assert next(stream).failure is None
    stream.close()
    assert synthesizer.speak("Still here.", speaker="ryan").duration_s > 0


def test_an_error_of_the_callers_iterator_comes_back(synthesizer: Synthesizer) -> None:
    def rows() -> Iterator[dict[str, str]]:
        yield {"id": "one", "text": "One.", "speaker": "ryan"}
        raise ZeroDivisionError("mine")

    clips = []
    with pytest.raises(ZeroDivisionError, match="mine"):
        clips += [clip.id for clip in synthesizer.stream(rows())]
    assert synthesizer.speak("Still here.", speaker="ryan").duration_s > 0


def test_an_engine_that_breaks_is_told_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE", '{"fail_step": "CUDA error: device-side assert triggered"}')
    with Synthesizer("tiny-random", engine="tests.fake_engine:create") as synthesizer:
        with pytest.raises(CannotContinueError, match=r"The engine failed .*device-side assert"):
            synthesizer.speak("Hello there.", speaker="ryan")
        monkeypatch.delenv("FAKE_ENGINE")
        assert synthesizer.speak("Hello there.", speaker="ryan").duration_s > 0


def test_a_clip_that_synth_would_fail_fails_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = {"noisy": "noise", "again": "silent_once", "never": "silent"}
    with tempfile.TemporaryDirectory() as state:
        monkeypatch.setenv("FAKE_ENGINE", json.dumps({"faults": faults, "state": state}))
        with Synthesizer("tiny-random", engine="tests.fake_engine:create", device="cpu", attempts=2) as synthesizer:
            rows = [
                {"id": name, "text": "Some words.", "speaker": "ryan"} for name in ("noisy", "again", "never", "good")
            ]
            clips = {clip.id: clip for clip in synthesizer.stream(rows)}
    reasons = {name: clip.failure and clip.failure.reason for name, clip in clips.items()}
    assert reasons == {"noisy": "noise_output", "again": None, "never": "silent_output", "good": None}
    assert clips["again"].seed == derive_seed(0, "again", attempt=1)


def test_an_interrupted_cell_raises_and_leaves_the_engine_usable(synthesizer: Synthesizer) -> None:
    def rows() -> Iterator[dict[str, str]]:
        yield {"id": "one", "text": "One.", "speaker": "ryan"}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(synthesizer.stream(rows()))
    assert synthesizer.speak("One.", id="one", speaker="ryan").duration_s > 0


def test_an_interrupted_run_stops_cleanly_and_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_ENGINE", json.dumps({"row_s": 0.02, "slots": 1}))
    rows = [{"id": f"r{n}", "text": f"Number {n}.", "speaker": "ryan"} for n in range(200)]
    options: dict[str, Any] = {**QUICK, "model": "tiny-random", "engine": "tests.fake_engine:create"}
    interrupt = threading.Thread(target=interrupt_when, args=(lambda: any(tmp_path.glob("out/*/*.wav")),))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt) as interrupted:
        tts_batch.synth(rows, out=tmp_path / "out", **options)
    interrupt.join()
    assert interrupted.value.result.ok > 0
    assert interrupted.value.result.ok + interrupted.value.result.pending == 200
    assert pq.read_table(tmp_path / "out" / "manifest.parquet")["status"].to_pylist().count("pending") > 0
    monkeypatch.setenv("FAKE_ENGINE", "{}")
    result = tts_batch.synth(rows, out=tmp_path / "out", **options)
    assert (result.ok, result.pending, result.is_complete) == (200, 0, True)


def interrupt_when(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


def test_no_rows_give_no_clips(synthesizer: Synthesizer) -> None:
    assert list(synthesizer.stream([])) == []


@pytest.mark.parametrize("option", ["out", "limit", "takes", "save_codes", "strict"])
def test_options_of_a_run_are_refused(option: str) -> None:
    with pytest.raises(UsageError, match=f"'{option}' belongs to a run"):
        Synthesizer("tiny", **{option: 1})
