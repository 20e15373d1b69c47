"""Parquet and Arrow: every string type, structs, big row groups, folders."""

from __future__ import annotations

import datetime
import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile

from tests.dataset.support import ReadRows, reasons
from tts_batch.config import JobConfig
from tts_batch.dataset.audio import load_reference
from tts_batch.dataset.rows import read_rows
from tts_batch.errors import UsageError


def write(path: Path, columns: dict[str, Any], **options: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)


STRING_TYPES = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()), pa.binary()]


@pytest.mark.parametrize("kind", STRING_TYPES, ids=str)
def test_b41_all_string_types_are_equal(read: ReadRows, kind: pa.DataType) -> None:
    text = pa.array(["Grüße", None, "日本"], pa.string()).cast(kind)
    write(read.folder / "t.parquet", {"text": text, "id": pa.array(["a", "b", "c"]).cast(kind)})
    rows = read("t.parquet")
    assert [(row.id, row.text) for row in rows] == [("a", "Grüße"), ("b", ""), ("c", "日本")]
    assert reasons(rows) == [None, "empty_text", None]


def test_b41_bytes_that_are_not_utf8_are_refused_clearly(read: ReadRows) -> None:
    write(read.folder / "t.parquet", {"text": pa.array([b"caf\xe9"])})
    (row,) = read("t.parquet")
    assert row.failure and row.failure.reason == "bad_text" and "not UTF-8" in row.failure.message


def test_b42_numbers_as_ids_are_written_plainly(read: ReadRows) -> None:
    write(read.folder / "f.parquet", {"id": pa.array([1.0, 2.0, None, 2.5]), "text": ["a", "b", "c", "d"]})
    rows = read("f.parquet")
    assert [row.id for row in rows[:2]] == ["1", "2"]
    assert reasons(rows) == [None, None, "bad_id", "bad_id"]
    assert any("whole number stored as a float" in note and "2 rows" in note for note in read.notes)
    write(read.folder / "i.parquet", {"id": pa.array([7, 2**63 - 1]), "text": ["a", "b"]})
    assert [row.id for row in read("i.parquet")] == ["7", str(2**63 - 1)]


def test_extras_come_through_and_recordings_do_not(read: ReadRows) -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 6)
    columns = {
        "text": ["a"],
        "score": [1.5],
        "when": pa.array([moment], pa.timestamp("ns")),
        "price": [Decimal("1.50")],
        "tags": [["x", "y"]],
        "counts": pa.array([[1, None]]),
        "audio": pa.array([{"bytes": b"RIFF", "path": "a.wav"}]),
        "raw": [b"123"],
    }
    write(read.folder / "t.parquet", columns)
    (row,) = read("t.parquet")
    assert dict(row.extras) == {
        "score": 1.5,
        "when": moment,
        "price": Decimal("1.50"),
        "tags": ["x", "y"],
        "counts": [1, None],
    }
    assert sum("holds bytes or recordings" in note for note in read.notes) == 2


def test_b46_array_structs_keep_their_types(read: ReadRows, tone: Any) -> None:
    samples = (tone(1.0, 16_000) * 32767).astype(np.int16)
    for item_type in (pa.int16(), pa.float64()):
        kind = pa.struct([("array", pa.list_(item_type)), ("sampling_rate", pa.int32())])
        cells = pa.array([{"array": samples, "sampling_rate": 16_000}, None], kind)
        write(read.folder / "t.parquet", {"text": ["a", "b"], "ref_audio": cells})
        rows = read("t.parquet")
        assert rows[0].ref_audio is not None and rows[1].ref_audio is None
        assert rows[0].ref_audio.array.dtype == item_type.to_pandas_dtype()
        assert rows[0].ref_audio.sampling_rate_hz == 16_000
        np.testing.assert_array_equal(rows[0].ref_audio.array, samples)


def test_b46_channels_in_nested_lists(read: ReadRows) -> None:
    kind = pa.struct([("array", pa.list_(pa.list_(pa.float32()))), ("sampling_rate", pa.int64())])
    cells = pa.array([{"array": [[0.1, 0.2, 0.3], [0.3, 0.2, 0.1]], "sampling_rate": 8000}], kind)
    write(read.folder / "t.parquet", {"text": ["a"], "ref_audio": cells})
    (row,) = read("t.parquet")
    assert row.ref_audio and row.ref_audio.array.shape == (2, 3)


def test_b47_structs_of_bytes_and_path(read: ReadRows) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    cells = [
        {"bytes": None, "path": "clips/a.wav"},
        {"bytes": b"RIFFx", "path": "3f9c"},
        {"bytes": None, "path": None},
        {"bytes": b"", "path": "clips/a.wav"},
        {"bytes": b"", "path": None},
    ]
    write(read.folder / "t.parquet", {"text": list("abcde"), "ref_audio": pa.array(cells, kind)})
    by_path, by_bytes, nothing, by_path_too, nothing_too = read("t.parquet")
    assert by_path_too.ref_audio and by_path_too.ref_audio.path == str(read.folder / "clips/a.wav")
    assert nothing_too.ref_audio is None
    assert by_path.ref_audio and by_path.ref_audio.path == str(read.folder / "clips/a.wav")
    assert by_bytes.ref_audio and by_bytes.ref_audio.data == b"RIFFx"
    assert nothing.ref_audio is None


@pytest.mark.timeout(120)
def test_b48_a_row_group_beyond_two_gib_is_read_in_pieces(read: ReadRows) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    recording = bytes(64 << 20)  # equal bytes: 4 MB on disk, 2.3 GB when decoded
    path = read.folder / "t.parquet"
    piece = pa.array([{"bytes": recording, "path": None}] * 4, kind)
    table = pa.table({"text": [f"row {i}" for i in range(36)], "ref_audio": pa.chunked_array([piece] * 9)})
    pq.write_table(table, path, row_group_size=36, compression="zstd")
    assert pq.ParquetFile(path).num_row_groups == 1
    assert [len(row.ref_audio.data) for row in read("t.parquet") if row.ref_audio and row.ref_audio.data] == [
        64 << 20
    ] * 36


def test_b49_recordings_of_several_files_are_never_held_together(read: ReadRows) -> None:
    recording = bytes(4 << 20)
    for number in range(3):
        columns = {"text": [f"row {i}" for i in range(40)], "ref_audio": [recording] * 40, "n": range(40)}
        write(read.folder / f"{number}.parquet", columns, compression="zstd")
    config = JobConfig(data=(str(read.folder / "*.parquet"),), out=read.folder / "out")
    held = [pa.total_allocated_bytes() for row in read_rows(config) if row.ref_audio]
    assert len(held) == 120
    assert max(held) - min(held) < 120 * len(recording) / 2


def test_recordings_of_row_groups_that_were_read_are_not_held(read: ReadRows) -> None:
    recordings = [np.random.default_rng(number).bytes(1 << 20) for number in range(40)]  # which do not compress
    write(read.folder / "t.parquet", {"text": ["a"] * 40, "ref_audio": recordings}, row_group_size=4)
    config = JobConfig(data=(str(read.folder / "t.parquet"),), out=read.folder / "out")
    held = [pa.total_allocated_bytes() for row in read_rows(config) if row.ref_audio]
    assert len(held) == 40
    assert max(held[4:]) - min(held[4:]) < 12 << 20


def test_b50_lists_of_references(read: ReadRows) -> None:
    kind = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    one = {"bytes": b"RIFF", "path": None}
    write(read.folder / "t.parquet", {"text": list("abcd"), "ref_audio": pa.array([[one, one], [one], [], None], kind)})
    rows = read("t.parquet")
    assert reasons(rows) == ["bad_row", None, None, None]
    assert [row.ref_audio is not None for row in rows] == [False, True, False, False]


def test_b55_folders_skip_side_files(read: ReadRows) -> None:
    folder = read.folder / "data"
    write(folder / "part-0.parquet", {"text": ["a", "b"]})
    write(folder / "part-2.parquet", {"text": pa.array([], pa.string())})
    (folder / "part-1.parquet").touch()
    (folder / "_SUCCESS").touch()
    (folder / ".part-0.parquet.crc").write_bytes(b"crc")
    write(folder / "_temporary" / "part-9.parquet", {"text": ["no"]})
    assert [row.text for row in read("data")] == ["a", "b"]
    assert [row.text for row in read("data/*.parquet")] == ["a", "b"]
    write(folder / "wavs" / "manifest.parquet", {"text": ["made of them"]})
    (folder / "wavs" / "run.json").write_text("{}")
    (folder / "wavs" / "journal" / "w0").mkdir(parents=True)
    (folder / "wavs" / "journal" / "w0" / "00001-001.jsonl").write_text('{"id": "no table"}\n')
    assert [row.text for row in read("data")] == ["a", "b"]
    assert [row.text for row in read("data/wavs/manifest.parquet")] == ["made of them"]
    memory = fsspec.filesystem("memory")
    memory.put(str(folder), "/b55", recursive=True)
    assert [row.text for row in read("memory://b55")] == ["a", "b"]


def test_partition_folders_are_columns(read: ReadRows) -> None:
    write(read.folder / "d/language=de/part-0.parquet", {"text": ["a"]})
    write(read.folder / "d/language=en/split=x/part-0.parquet", {"text": ["b"]})
    rows = read("d")
    assert [(row.text, row.language, dict(row.extras)) for row in rows] == [
        ("a", "german", {}),
        ("b", "english", {"split": "x"}),
    ]
    assert rows[1].source == "language=en/split=x/part-0.parquet:1"


def test_files_with_other_columns_are_read_each_in_its_way(read: ReadRows) -> None:
    write(read.folder / "1.parquet", {"text": ["a"], "lang": ["de"]})
    write(read.folder / "2.parquet", {"sentence": ["b"], "x": [1]})
    assert [(row.text, row.language, row.row_index) for row in read("1.parquet", "2.parquet")] == [
        ("a", "german", 0),
        ("b", None, 1),
    ]


@pytest.mark.parametrize("opener", [pa.ipc.new_stream, pa.ipc.new_file])
def test_arrow_files_as_datasets_saves_them(read: ReadRows, opener: Any) -> None:
    table = pa.table({"text": [f"row {i}" for i in range(3000)], "n": range(3000)})
    (read.folder / "d").mkdir()
    with opener(read.folder / "d/data-00000-of-00001.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)
    (read.folder / "d/state.json").write_text("{}")
    rows = read("d")
    assert [row.text for row in rows] == table["text"].to_pylist()
    assert rows[2999].extras == {"n": 2999}


def test_b46_a_saved_dataset_is_its_data_without_its_caches(read: ReadRows, tone: Any) -> None:
    """The folder of a DatasetDict, with the audio struct of `datasets` 4."""
    sound = io.BytesIO()
    soundfile.write(sound, tone(), 24_000, format="WAV")
    for split, texts in (("train", ["a", "b"]), ("test", ["c"])):
        folder = read.folder / "saved" / split
        folder.mkdir(parents=True)
        audio = [{"bytes": sound.getvalue(), "path": None}] * len(texts)
        table = pa.table({"text": texts, "ref_audio": audio, "ref_text": texts})
        for name in ("data-00000-of-00001.arrow", "cache-3f9c.arrow"):
            with pa.ipc.new_stream(folder / name, table.schema) as writer:
                writer.write_table(table)
        (folder / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
        (folder / "dataset_info.json").write_text("{}")
    (read.folder / "saved/dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    rows = read("saved")
    assert [(row.text, row.source) for row in rows] == [
        ("c", "test/data-00000-of-00001.arrow:1"),
        ("a", "train/data-00000-of-00001.arrow:1"),
        ("b", "train/data-00000-of-00001.arrow:2"),
    ]
    assert rows[0].ref_audio is not None and load_reference(rows[0].ref_audio).size == 48_000


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.int32(), pa.int64()),
        (pa.int64(), pa.float64()),
        (pa.string(), pa.large_string()),
        (pa.string(), pa.string_view()),
        (pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.null(), pa.string()),
        (pa.timestamp("s"), pa.timestamp("us")),
    ],
    ids=str,
)
def test_types_that_go_together_are_not_noted(read: ReadRows, one: pa.DataType, other: pa.DataType) -> None:
    write(read.folder / "1.parquet", {"text": ["a"], "x": pa.nulls(1, one)})
    write(read.folder / "2.parquet", {"text": ["b"], "x": pa.nulls(1, other)})
    assert reasons(read("1.parquet", "2.parquet")) == [None, None]
    assert not read.notes


def test_types_that_do_not_are_named_with_both_files(read: ReadRows) -> None:
    for number, values in enumerate(
        (pa.array([1, 2]), pa.array(["x", "y"]), pa.array([b"z"] * 2), pa.array([[1], []]))
    ):
        write(read.folder / f"{number}.parquet", {"text": ["a", "b"], "score": values})
    files = [f"{number}.parquet" for number in range(4)]
    rows = read(*files)
    assert reasons(rows) == [None] * 8
    (note,) = [note for note in read.notes if "carried through as text" in note]
    assert note.startswith("column 'score' is int64 in 0.parquet and string in 1.parquet")
    for number, seed in enumerate((pa.array([1]), pa.array(["1"]))):  # ours are read cell by cell
        write(read.folder / f"{number}.parquet", {"text": ["a"], "seed": seed})
    assert [row.seed for row in read(*files[:2])] == [1, 1] and not read.notes


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow"])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"PAR1\x15\0\0\0", "."),
        (b"id,text\na,b\n", "it is text"),
        (b"version https://git-lfs.github.com/spec/v1\n", "it is a Git LFS pointer"),
        (b"<!doctype html>", "it is a web page"),
        (b"PK\x03\x04xl", "it is a ZIP archive"),
    ],
)
def test_what_is_no_parquet_is_named(read: ReadRows, name: str, data: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=rf"{name} cannot be read as \w+( IPC)?: {words}"):
        read.written(name, data)


def test_a_damaged_file_is_named_with_the_row(read: ReadRows) -> None:
    path = read.folder / "t.parquet"
    write(path, {"text": [f"row {i}" for i in range(5000)]}, row_group_size=2048, use_dictionary=False)
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data = path.read_bytes()
    path.write_bytes(data[:start] + bytes(range(100, 160)) + data[start + 60 :])
    with pytest.raises(UsageError, match=r"t\.parquet is damaged after row"):
        read("t.parquet")


@pytest.mark.parametrize("spec", ["nowhere.csv", "t.xlsx", "empty", "nosuchdriver://x/t.parquet", "*.parquet"])
def test_specs_that_name_no_table(read: ReadRows, spec: str) -> None:
    (read.folder / "t.xlsx").write_bytes(b"x")
    (read.folder / "empty").mkdir()
    with pytest.raises(UsageError):
        read(spec)


def test_limit_stops_reading(read: ReadRows) -> None:
    write(read.folder / "t.parquet", {"text": [f"t{i}" for i in range(10)]})
    assert len(read("t.parquet", limit=3)) == 3
