"""B69: the folder loads with the rows and the order that were written, whatever the ids are."""

from __future__ import annotations

import os
from pathlib import Path

import datasets
import pyarrow.parquet as pq
import pytest

from tests.export.support import MISLEADING_IDS, make_run, ok_rows
from tests.run.support import make_rows
from tts_batch.export import folders
from tts_batch.export.job import export_run
from tts_batch.export.target import ExportOptions


@pytest.mark.usefixtures("torchcodec")
@pytest.mark.parametrize("how", ["by its path", "as an audiofolder"])
def test_b69_as_many_rows_in_the_same_order(finished: Path, tmp_path: Path, how: str) -> None:
    out = tmp_path / "train" / "test_data"  # both have misled loaders
    export_run(finished, "audiofolder", out)
    if how == "by its path":
        loaded = datasets.load_dataset(str(out), cache_dir=str(tmp_path / "cache"))
    else:
        loaded = datasets.load_dataset("audiofolder", data_dir=str(out), cache_dir=str(tmp_path / "cache"))
    assert list(loaded) == ["train"]
    rows = ok_rows(finished)
    assert [row["id"] for row in rows[:9]] == [*MISLEADING_IDS]
    found = loaded["train"].cast_column("audio", datasets.Audio(decode=False))
    assert [row["id"] for row in found] == [row["id"] for row in rows]
    for made, row in zip(found, rows, strict=True):
        assert Path(made["audio"]["path"]).read_bytes() == (finished / row["audio"]).read_bytes()
        assert [made[name] for name in ("text", "note", "day", "code")] == [
            row[name] for name in ("text", "note", "day", "code")
        ]
        assert made["my_filename"] == "q.wav"  # under its own name it would be loaded as sound


def test_few_files_lie_in_a_folder(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "FILES_IN_A_FOLDER", 5)
    export_run(finished, "audiofolder", tmp_path / "out")
    names = pq.read_table(tmp_path / "out" / "metadata.parquet")["file_name"].to_pylist()
    assert names[:6] == [*(f"audio/0000/{n:09d}.wav" for n in range(5)), "audio/0001/000000005.wav"]
    assert names == sorted(names)


def test_columns_are_named_apart(tmp_path: Path) -> None:
    rows = make_rows(2)
    for row in rows:
        row |= {"file_name": "1", "filename": "2", "audio": "3", "speakers_file_names": "4"}
    run = make_run(tmp_path, rows)
    export_run(run, "audiofolder", tmp_path / "out")
    table = pq.read_table(tmp_path / "out" / "metadata.parquet")
    (first, *_) = table.to_pylist()
    assert first["file_name"] == "audio/0000/000000000.wav"
    others = {name: first[name] for name in ("filename", "input_filename", "input_audio", "speakers_filenames")}
    assert others == {"filename": "2", "input_filename": "1", "input_audio": "3", "speakers_filenames": "4"}


@pytest.mark.usefixtures("torchcodec")
@pytest.mark.parametrize("name", ["flac", "mp3", "opus"])
def test_other_audio_loads_too(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path, 2, format=name)
    export_run(run, "audiofolder", tmp_path / "folder")
    loaded = datasets.load_dataset(str(tmp_path / "folder"), split="train", cache_dir=str(tmp_path / "cache"))
    found = loaded.cast_column("audio", datasets.Audio(decode=False))
    assert [Path(row["audio"]["path"]).suffix for row in found] == [f".{name}"] * 2


def test_hard_links_take_no_room(run: Path, tmp_path: Path) -> None:
    export_run(run, "audiofolder", tmp_path / "out", ExportOptions(hard_link=True))
    first = ok_rows(run)[0]["audio"]
    assert os.path.samefile(run / first, tmp_path / "out" / "audio" / "0000" / "000000000.wav")
