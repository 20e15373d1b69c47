"""What an export promises as a whole: options that fit the format, counts that are true, a card that says them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.export.support import make_run
from tests.run.support import make_rows
from tts_batch.errors import ExitStatus, UsageError
from tts_batch.export.job import FORMATS, export_run
from tts_batch.export.target import ExportOptions


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_left_out_is_counted(finished: Path, tmp_path: Path, name: str) -> None:
    summary = export_run(finished, name, tmp_path / "out")
    assert (summary.rows, summary.exported) == (20, 18)
    assert summary.left_out == {"empty_text": 1, "silent_output": 1}
    assert summary.exit_status == ExitStatus.SOME_FAILED


def test_a_whole_run_is_0(tmp_path: Path) -> None:
    summary = export_run(make_run(tmp_path, 2), "nemo", tmp_path / "nemo")
    assert (summary.exit_status, summary.left_out) == (ExitStatus.OK, {})


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("hf", ExportOptions(decode=True), "--decode is for --to ljspeech and nemo and qwen-sft"),
        ("hf", ExportOptions(hard_link=True), "--hard-link is for"),
        ("nemo", ExportOptions(shard_mb=1), "--shard-mb is for --to hf and webdataset"),
        ("nemo", ExportOptions(ref_audio=Path("a.wav")), "--ref-audio is for --to qwen-sft"),
    ],
)
def test_an_option_that_means_nothing_is_refused(
    finished: Path, tmp_path: Path, name: str, options: ExportOptions, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        export_run(finished, name, tmp_path / "out", options)


@pytest.mark.parametrize("inner", [".", "export", "journal/nemo", "ab", "../run/export"])
def test_nothing_is_exported_into_the_run_folder(finished: Path, tmp_path: Path, inner: str) -> None:
    before = sorted(finished.rglob("*"))
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="lies in the run folder"):
            export_run(finished, "nemo", finished / inner, overwrite=overwrite)
    assert sorted(finished.rglob("*")) == before


def test_a_run_without_a_clip_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path, [{**row, "text": ""} for row in make_rows(2)])
    with pytest.raises(UsageError, match="none of its 2 rows is ok"):
        export_run(run, "hf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_card_tells_the_hub_and_the_reader(tmp_path: Path) -> None:
    rows = make_rows(3)
    rows[0]["language"], rows[1]["language"], rows[2]["text"] = "english", "chinese", ""
    export_run(make_run(tmp_path, rows), "hf", tmp_path / "my-voices")
    _, head, body = (tmp_path / "my-voices" / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    front = yaml.safe_load(head)
    assert front["language"] == ["en", "zh"]
    assert front["size_categories"] == ["n<1K"]
    assert "synthetic" in front["tags"]
    assert "# my-voices" in body
    assert "2 of 3 rows of the table are here; left out: 1 empty_text." in body
