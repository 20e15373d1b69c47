"""Need 15, B70: Parquet that `datasets` and the Hub's viewer open at once, with sound in it."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.export.support import make_run, ok_rows, tree
from tts_batch.export import shards
from tts_batch.export.columns import KEPT
from tts_batch.export.job import export_run
from tts_batch.export.shards import split_by_bytes
from tts_batch.export.target import ExportOptions

SMALL = ExportOptions(shard_mb=0.1)


def load(folder: Path, cache: Path) -> datasets.Dataset:
    loaded = datasets.load_dataset(str(folder), cache_dir=str(cache))
    assert list(loaded) == ["train"]
    return loaded["train"]


def test_datasets_loads_every_clip_in_order(finished: Path, tmp_path: Path) -> None:
    """Under a folder's name that looks like a split's, over several shards."""
    out = tmp_path / "test_eval"
    export_run(finished, "hf", out, SMALL)
    assert len(list((out / "data").iterdir())) > 3
    loaded = load(out, tmp_path / "cache")
    assert loaded.features["audio"] == datasets.Audio(sampling_rate=24_000)
    rows = ok_rows(finished)
    assert loaded["id"][:] == [row["id"] for row in rows]
    for made, row in zip(loaded.cast_column("audio", datasets.Audio(decode=False)), rows, strict=True):
        path = finished / row["audio"]
        assert made["audio"] == {"bytes": path.read_bytes(), "path": path.name}
        assert {name: made[name] for name in made if name != "audio"} == {
            name: row[name] for name in (*KEPT, "note", "tags", "my_file_name", "day", "code")
        }


def test_the_first_rows_can_be_streamed(finished: Path, tmp_path: Path) -> None:
    export_run(finished, "hf", tmp_path / "out", SMALL)
    stream = datasets.load_dataset(str(tmp_path / "out"), split="train", streaming=True, cache_dir=str(tmp_path / "c"))
    first = next(iter(stream.cast_column("audio", datasets.Audio(decode=False))))
    assert first["id"] == "train_1"


def test_shards_are_named_and_typed_as_documented(finished: Path, tmp_path: Path) -> None:
    export_run(finished, "hf", tmp_path / "out", SMALL)
    shards = sorted((tmp_path / "out" / "data").iterdir())
    assert [path.name for path in shards] == [f"train-{n:05d}-of-{len(shards):05d}.parquet" for n in range(len(shards))]
    schema = pq.read_schema(shards[-1])
    assert schema.field("audio").type == pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert features == {"audio": {"sampling_rate": 24_000, "_type": "Audio"}}
    assert max(path.stat().st_size for path in shards) < 110_000


def test_b70_row_groups_are_bounded_by_bytes(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ten_s = 480_044
    groups = list(split_by_bytes([ten_s] * 5_000, shards.ROW_GROUP_BYTES))
    assert sum(groups) == 5_000
    assert max(groups) * ten_s <= 100_000_000 < (max(groups) + 1) * ten_s
    monkeypatch.setattr(shards, "ROW_GROUP_BYTES", 80_000)
    export_run(finished, "hf", tmp_path / "out")
    (shard,) = (tmp_path / "out" / "data").iterdir()
    file = pq.ParquetFile(shard)
    assert file.num_row_groups > 5
    for number in range(file.num_row_groups):
        audio = file.read_row_group(number)["audio"].to_pylist()
        assert len(audio) == 1 or sum(len(clip["bytes"]) for clip in audio) <= 80_000


def test_a_clip_larger_than_a_shard_has_one_of_its_own() -> None:
    assert list(split_by_bytes([5, 20, 5, 5, 1], 10)) == [1, 1, 2, 1]
    assert list(split_by_bytes([], 10)) == []


@pytest.mark.parametrize("name", ["flac", "mp3", "opus"])
def test_other_audio_stays_as_it_is(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path, 2, format=name)
    export_run(run, "hf", tmp_path / "hf")
    loaded = load(tmp_path / "hf", tmp_path / "cache").cast_column("audio", datasets.Audio(decode=False))
    files = [run / row["audio"] for row in ok_rows(run)]
    assert [clip["audio"]["bytes"] for clip in loaded] == [path.read_bytes() for path in files]
    assert [clip["audio"]["path"] for clip in loaded] == [path.name for path in files]


def test_equal_runs_give_equal_bytes(finished: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        export_run(finished, "hf", tmp_path / name / "out", SMALL)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
