"""Folders named key=value are columns, as Hive and Spark write them, however the table is named."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.dataset.support import ReadRows
from tts_batch.config import JobConfig
from tts_batch.dataset.notes import Notes
from tts_batch.dataset.rows import read_rows, read_tables
from tts_batch.errors import UsageError
from tts_batch.memory_table import RowsTable, as_arrow, write_table


def write(path: Path, **columns: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({name: [value] for name, value in columns.items()})
    match path.suffix:
        case ".parquet":
            pq.write_table(table, path)
        case ".arrow":
            with pa.ipc.new_stream(path, table.schema) as writer:
                writer.write_table(table)
        case ".jsonl":
            path.write_text(str(columns).replace("'", '"') + "\n")
        case ".csv" | ".tsv":
            separator = "," if path.suffix == ".csv" else "\t"
            path.write_text(f"{separator.join(columns)}\n{separator.join(columns.values())}\n")


@pytest.mark.parametrize("spec", ["d", "d/language=de", "d/language=de/speaker=Uncle Fu", "d/*/*/*.csv", "d/**/t.csv"])
def test_values_are_the_same_however_the_file_is_named(read: ReadRows, spec: str) -> None:
    write(read.folder / "d/language=de/speaker=Uncle Fu/t.csv", text="a")
    (row,) = read(spec)
    assert (row.language, row.speaker) == ("german", "uncle_fu")
    assert read("d/language=de/speaker=Uncle Fu/t.csv")[0].speaker == "uncle_fu"
    assert "language ← folder language=de" in read.reports[0]


@pytest.mark.parametrize("value", ["a/b", "x=y", "50%", "naïve 日本", " "])
def test_quoting_is_undone(read: ReadRows, value: str) -> None:
    write(read.folder / f"d/{quote('the tag', safe='')}={quote(value, safe='')}/t.parquet", text="a")
    assert dict(read("d")[0].extras) == {"the tag": value}


def test_hives_null_is_a_null(read: ReadRows) -> None:
    write(read.folder / "d/language=__HIVE_DEFAULT_PARTITION__/mood=__HIVE_DEFAULT_PARTITION__/t.parquet", text="a")
    (row,) = read("d", language="German")
    assert (row.language, dict(row.extras), row.failure) == ("german", {"mood": None}, None)


def test_only_folders_directly_above_the_file_count(read: ReadRows) -> None:
    write(read.folder / "d/speaker=ryan/part/language=de/t.parquet", text="a")
    (row,) = read("d")
    assert (row.language, row.speaker) == ("german", None)
    assert any("'speaker=ryan' is not a column" in note for note in read.notes)
    assert read("d/speaker=ryan/part")[0].speaker is None


def test_values_of_other_file_systems(read: ReadRows) -> None:
    write(read.folder / "d/language=de/t.parquet", text="a")
    fsspec.filesystem("memory").put(str(read.folder / "d"), "/folder-values", recursive=True)
    assert [row.language for row in read("memory://folder-values", "memory://folder-values/language=de/t.parquet")] == [
        "german"
    ]


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "tsv", "jsonl"])
@pytest.mark.parametrize("column", ["speaker", "Speaker"])
def test_a_column_of_the_same_name_is_an_error_that_names_both(read: ReadRows, suffix: str, column: str) -> None:
    write(read.folder / f"speaker=ryan/t.{suffix}", text="a", **{column: "vivian"})
    with pytest.raises(UsageError, match=rf"the column '{column}', and the folder 'speaker=ryan'"):
        read("speaker=ryan")


@pytest.mark.parametrize(("folder", "column"), [("lang", "language"), ("language", "lang"), ("Sentence", "transcript")])
def test_a_column_of_the_same_meaning_is_an_error_too(read: ReadRows, folder: str, column: str) -> None:
    write(
        read.folder / f"{folder}=de/t.csv", **{"text": "a", column: "en"} if column != "transcript" else {column: "a"}
    )
    with pytest.raises(UsageError, match=rf"the column '{column}', and the folder '{folder}=de' above it"):
        read(f"{folder}=de")
    ours = "text" if column == "transcript" else "language"
    (row,) = read(f"{folder}=de", map={ours: column})
    assert getattr(row, ours) in {"a", "english"} and row.extras == {folder: "de"}


@pytest.mark.parametrize("path", ["speaker=ryan/speaker=vivian", "Speaker=ryan/speaker=vivian", "lang=de/language=en"])
def test_two_folders_of_one_name_are_an_error(read: ReadRows, path: str) -> None:
    write(read.folder / f"{path}/t.csv", text="a")
    with pytest.raises(UsageError, match="rename one of them"):
        read(path)


def test_hives_null_is_shown_as_it_is_written(read: ReadRows) -> None:
    write(read.folder / "language=__HIVE_DEFAULT_PARTITION__/t.csv", text="a")
    read("language=__HIVE_DEFAULT_PARTITION__")
    assert "language ← folder language=__HIVE_DEFAULT_PARTITION__" in read.reports[0]


def test_a_late_key_of_the_same_name_is_an_error_too(read: ReadRows) -> None:
    folder = read.folder / "speaker=ryan"
    folder.mkdir()
    (folder / "t.jsonl").write_text('{"text": "a"}\n' * 1500 + '{"text": "a", "speaker": "vivian"}\n')
    with pytest.raises(UsageError, match="the column 'speaker', and the folder"):
        read("speaker=ryan")


def test_rows_from_python_have_no_folder_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "speaker=anna"
    folder.mkdir()
    monkeypatch.chdir(folder)
    config = JobConfig(data=(str(write_table(as_arrow([{"text": "a"}]), folder, {})),), out=folder)
    (row,) = read_rows(config)
    (spoken,) = read_tables([RowsTable([{"text": "a"}])], config, Notes(), with_extras=False)
    assert row.speaker is None and spoken.speaker is None
