"""NeMo's manifest: relative paths that exist, and nothing that NeMo reads as its own."""

from __future__ import annotations

import json
from pathlib import Path

import soundfile

from tests.export.support import make_run, ok_rows
from tests.run.support import make_rows
from tts_batch.export.job import export_run
from tts_batch.export.target import ExportOptions


def test_a_line_a_clip_in_order(finished: Path, tmp_path: Path) -> None:
    export_run(finished, "nemo", tmp_path / "one")
    folder = (tmp_path / "one").rename(tmp_path / "moved")
    lines = [json.loads(line) for line in (folder / "manifest.jsonl").read_bytes().splitlines()]
    rows = ok_rows(finished)
    assert [(line["id"], line["text"], line["duration"]) for line in lines] == [
        (row["id"], row["text"], row["duration_s"]) for row in rows
    ]
    for line, row in zip(lines, rows, strict=True):
        assert set(line) == {"audio_filepath", "duration", "text", "id", "speaker"}
        made = folder / line["audio_filepath"]
        assert made.read_bytes() == (finished / row["audio"]).read_bytes()
        assert soundfile.info(made).duration == line["duration"]


def test_columns_of_the_table_are_not_taken_for_nemo_s(tmp_path: Path) -> None:
    run = make_run(tmp_path, [{**row, "offset": 3.5, "duration": 9.0, "language": "english"} for row in make_rows(2)])
    export_run(run, "nemo", tmp_path / "nemo")
    (first, _) = (json.loads(line) for line in (tmp_path / "nemo" / "manifest.jsonl").read_bytes().splitlines())
    assert "offset" not in first
    assert (first["duration"], first["language"]) == (ok_rows(run)[0]["duration_s"], "english")


def test_flac_stays_and_opus_becomes_wav(tmp_path: Path) -> None:
    flac = make_run(tmp_path / "a", 1, format="flac")
    export_run(flac, "nemo", tmp_path / "flac")
    line = json.loads((tmp_path / "flac" / "manifest.jsonl").read_bytes())
    assert (tmp_path / "flac" / line["audio_filepath"]).read_bytes() == (flac / ok_rows(flac)[0]["audio"]).read_bytes()
    opus = make_run(tmp_path / "b", 1, format="opus")
    export_run(opus, "nemo", tmp_path / "opus", ExportOptions(decode=True))
    line = json.loads((tmp_path / "opus" / "manifest.jsonl").read_bytes())
    assert soundfile.info(tmp_path / "opus" / line["audio_filepath"]).format == "WAV"
