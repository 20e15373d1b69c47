"""Lines for Qwen3-TTS's fine-tuning scripts: they open paths from the folder, and want one reference at 24 kHz."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.export.support import make_run, ok_rows
from tests.run.support import make_rows
from tts_batch.errors import UsageError
from tts_batch.export import folders
from tts_batch.export.job import export_run
from tts_batch.export.target import ExportOptions


def read_lines(folder: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / "train_raw.jsonl").read_text(encoding="utf-8").split("\n")[:-1]]


def test_a_line_a_clip_with_one_reference(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "IDEAL_REFERENCE_S", 0.0)
    summary = export_run(finished, "qwen-sft", tmp_path)
    rows = ok_rows(finished)
    lines = read_lines(tmp_path)
    assert [line["text"] for line in lines] == [row["text"] for row in rows]
    assert {line["ref_audio"] for line in lines} == {"ref.wav"}
    for line, row in zip(lines, rows, strict=True):
        assert set(line) == {"audio", "text", "ref_audio"}
        assert (tmp_path / line["audio"]).read_bytes() == (finished / row["audio"]).read_bytes()
    shortest = min(rows, key=lambda row: row["duration_s"])
    reference, rate_hz = soundfile.read(tmp_path / "ref.wav")
    assert rate_hz == 24_000
    assert abs(reference - soundfile.read(finished / shortest["audio"])[0]).max() < 1e-4
    (remark,) = summary.remarks
    assert repr(shortest["id"]) in remark and "--ref-audio" in remark


def test_a_given_reference_comes_to_24_khz_mono(finished: Path, tmp_path: Path) -> None:
    given = tmp_path / "given.flac"
    soundfile.write(given, np.sin(np.arange(2 * 44_100) / 20)[:, None].repeat(2, axis=1) * 0.3, 44_100)
    summary = export_run(finished, "qwen-sft", tmp_path / "sft", ExportOptions(ref_audio=given))
    info = soundfile.info(tmp_path / "sft" / "ref.wav")
    assert (info.samplerate, info.channels, info.subtype) == (24_000, 1, "PCM_16")
    assert info.duration == pytest.approx(2.0, abs=0.001)
    assert summary.remarks == ()
    soundfile.write(given, np.sin(np.arange(44_100) / 10) * 0.3, 44_100)
    with pytest.raises(UsageError, match="its options differ"):
        export_run(finished, "qwen-sft", tmp_path / "sft", ExportOptions(ref_audio=given))


@pytest.mark.parametrize(("content", "words"), [(None, "gone.wav"), (b"no sound", "cannot be used")])
def test_a_reference_that_cannot_be_used_is_refused_before_anything(
    finished: Path, tmp_path: Path, content: bytes | None, words: str
) -> None:
    given = tmp_path / "gone.wav"
    if content is not None:
        given.write_bytes(content)
    with pytest.raises(UsageError, match=words):
        export_run(finished, "qwen-sft", tmp_path / "sft", ExportOptions(ref_audio=given))
    assert not list((tmp_path / "sft").rglob("*.jsonl"))


def test_several_voices_are_remarked(tmp_path: Path) -> None:
    rows = make_rows(3)
    rows[2]["speaker"] = "ryan"
    remarks = export_run(make_run(tmp_path, rows), "qwen-sft", tmp_path / "sft").remarks
    assert any("several voices" in remark for remark in remarks)
