"""Columns of every type that a table may carry reach the exports, and `datasets` opens those."""

from __future__ import annotations

import datetime
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.export.support import make_run, ok_rows
from tts_batch.export.job import FORMATS, export_run

COLUMNS: dict[str, pa.Array] = {
    "uuid": pa.array([uuid.UUID(int=1).bytes, None], pa.uuid()),
    "json": pa.array(['{"a": 1}', None], pa.json_()),
    "out of range": pa.array([2**62, 0], pa.timestamp("us")),
    "unknown zone": pa.array([0, 1], pa.timestamp("us", "Mars/Olympus")),
    "zone": pa.array([0, 1], pa.timestamp("us", "Europe/Berlin")),
    "first and last": pa.array([datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    "late": pa.array([2**31 - 1, 0], pa.date32()),
    "long": pa.array([2**62, 1], pa.duration("s")),
    "nanoseconds": pa.array([1, 2], pa.time64("ns")),
    "decimal": pa.array([Decimal(10) ** 60, None], pa.decimal256(70, 0)),
    "dictionary": pa.array(["x", "y"]).dictionary_encode(),
    "unsigned": pa.array([2**64 - 1, 0], pa.uint64()),
    "half": pa.array([1.0, float("nan")], pa.float16()),
    "null": pa.nulls(2),
    "struct": pa.array([{"a": 1, "b": None}, None], pa.struct([("a", pa.int64()), ("b", pa.null())])),
    "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
    "nested": pa.array([[[{"a": [1]}]], None]),
    "view": pa.array(["a", "b\0\x1b"], pa.string_view()),
    "audio": pa.array(["q", "r"]),
    "file_name": pa.array(["q.wav", "r.wav"]),
    "split": pa.array(["train", "test"]),
    "": pa.array([1, 2]),
    "a.b": pa.array([1, 2]),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("carried")
    table = folder / "table.parquet"
    pq.write_table(
        pa.table(
            {"id": ["a", "b"], "text": ["The boat left.", "Nobody saw it."], "speaker": ["vivian"] * 2, **COLUMNS}
        ),
        table,
    )
    return make_run(folder, 1, data=(str(table),))


@pytest.fixture(scope="module")
def json_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JSON has no types: a column may hold anything in any row."""
    first = {"e": {}, "m": 1, "n": {"a": {}}, "l": [{}], "x": [1, "a"], "big": 10**30, "d": {"a": 1}, "deep": [[[[]]]]}
    second: dict[str, Any] = {"e": {}, "m": "x", "n": {"a": {"b": 1}}, "l": [], "x": "x", "big": 5, "d": [1], "deep": 1}
    rows = [
        {"id": name, "text": "The boat left.", "speaker": "vivian", **extra}
        for name, extra in (("a", first), ("b", second))
    ]
    return make_run(tmp_path_factory.mktemp("json"), rows)


@pytest.mark.usefixtures("torchcodec")
@pytest.mark.parametrize("kind", ["run", "json_run"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_export_is_written_and_opens(
    kind: str, name: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Path = request.getfixturevalue(kind)
    assert len(ok_rows(run)) == 2
    summary = export_run(run, name, tmp_path / "out")
    assert summary.exported == 2 and not summary.left_out
    if name in {"hf", "audiofolder", "webdataset"}:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        opened = datasets.load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
        assert opened.num_rows == 2
        columns = set(opened.column_names)
        assert columns >= ({"__key__", "json", "wav"} if name == "webdataset" else {"id", "text"})
    if name in {"nemo", "qwen-sft"}:
        lines = (tmp_path / "out" / ("manifest.jsonl" if name == "nemo" else "train_raw.jsonl")).read_text()
        assert [json.loads(line)["text"] for line in lines.splitlines()] == [row["text"] for row in ok_rows(run)]
