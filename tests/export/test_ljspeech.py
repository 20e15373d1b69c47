"""The list that TTS trainers read: one line a clip, whatever the text is, beside wav files only."""

from __future__ import annotations

from pathlib import Path

import pytest
import soundfile

from tests.dataset.support import ReadRows
from tests.export.support import make_run, ok_rows
from tests.run.support import make_rows
from tts_batch.errors import CannotContinueError, UsageError
from tts_batch.export.clips import FinishedClips
from tts_batch.export.job import export_run
from tts_batch.export.target import ExportOptions
from tts_batch.store.clips import clip_name


def test_a_line_a_clip_in_order(finished: Path, tmp_path: Path) -> None:
    summary = export_run(finished, "ljspeech", tmp_path)
    lines = (tmp_path / "metadata.csv").read_text(encoding="utf-8").split("\n")
    rows = ok_rows(finished)
    assert lines.pop() == ""
    assert [line.split("|")[0] for line in lines] == [clip_name(row["id"]) for row in rows]
    assert lines[0] == "train_1|Sentence number 0 of the table.|Sentence number 0 of the table."
    assert lines[3].split("|")[1:] == ['He said "go" now, NA'] * 2
    assert len(lines) == len("\n".join(lines).splitlines()) == len(rows)
    assert any("Texts with a '|' or a line break: 1." in remark for remark in summary.remarks)
    for row in rows:
        copy = tmp_path / "wavs" / f"{clip_name(row['id'])}.wav"
        assert copy.read_bytes() == (finished / row["audio"]).read_bytes()


def test_this_toolkit_reads_it_back(finished: Path, tmp_path: Path) -> None:
    export_run(finished, "ljspeech", tmp_path / "lj")
    written = (tmp_path / "lj" / "metadata.csv").read_text(encoding="utf-8")
    rows = ReadRows(tmp_path).written("metadata.csv", written)
    assert [row.id for row in rows] == [clip_name(row["id"]) for row in ok_rows(finished)]
    assert all(row.failure is None and row.text for row in rows)


def test_texts_that_fit_are_not_remarked(tmp_path: Path) -> None:
    assert export_run(make_run(tmp_path, 2), "ljspeech", tmp_path / "lj").remarks == ()


@pytest.mark.parametrize("name", ["flac", "mp3", "opus"])
def test_what_is_no_wav_is_refused_and_decoded_when_asked(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path, make_rows(4), format=name)
    with pytest.raises(UsageError, match=rf"ljspeech takes \.wav, and .* holds \.{name} clips\. --decode writes"):
        export_run(run, "ljspeech", tmp_path / "lj")
    assert not (tmp_path / "lj").exists()
    for _ in range(2):  # the second time finds everything there
        export_run(run, "ljspeech", tmp_path / "lj", ExportOptions(decode=True))
    for row in ok_rows(run):
        made = tmp_path / "lj" / "wavs" / f"{clip_name(row['id'])}.wav"
        assert soundfile.info(made).subtype == "PCM_16"
        found, rate_hz = soundfile.read(made, dtype="int16")
        wanted, wanted_hz = soundfile.read(run / row["audio"], dtype="int16")
        assert rate_hz == wanted_hz == 24_000
        assert abs(found.astype(int) - wanted).max() <= (0 if name == "flac" else 1)


def test_loud_mp3_does_not_wrap(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1, faults={"row-0": "loud"}, format="mp3")
    export_run(run, "ljspeech", tmp_path / "lj", ExportOptions(decode=True))
    decoded, _ = soundfile.read(run / ok_rows(run)[0]["audio"], dtype="float32")
    made, _ = soundfile.read(tmp_path / "lj" / "wavs" / "row-0.wav", dtype="float32")
    assert abs(made - decoded.clip(-1, 1)).max() < 1e-4


@pytest.mark.parametrize("name", ["mp3", "flac"])
def test_a_damaged_clip_is_named(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path, 3, format=name)
    clip = next(iter(FinishedClips(run))).path
    clip.write_bytes(bytes(clip.stat().st_size))
    with pytest.raises(CannotContinueError, match=rf"{clip.name} is damaged: delete it"):
        export_run(run, "ljspeech", tmp_path / "out", ExportOptions(decode=True))
