"""Tables made in Python arrive on disk as they are, once for each content."""

from __future__ import annotations

import datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile
import torch

from tts_batch.config import JobConfig
from tts_batch.dataset.audio import load_reference
from tts_batch.dataset.notes import Notes
from tts_batch.dataset.rows import read_rows, read_tables
from tts_batch.errors import UsageError
from tts_batch.memory_table import RowsTable, as_arrow, write_table

CONFIG = JobConfig(data=("rows",), out=Path("out"))

ROWS = [{"id": "a", "text": "One."}, {"id": "b", "text": "Two.", "topic": "x"}]


@pytest.mark.parametrize(
    "table",
    [ROWS, iter(ROWS), tuple(ROWS), pa.Table.from_pylist([ROWS[0] | {"topic": None}, ROWS[1]]), pd.DataFrame(ROWS)],
    ids=["list", "iterator", "tuple", "pyarrow", "pandas"],
)
def test_the_usual_kinds_of_table(table: Any) -> None:
    assert as_arrow(table).to_pylist() == [{"id": "a", "text": "One.", "topic": None}, ROWS[1]]


def test_a_filtered_frame_brings_no_index_column() -> None:
    frame = pd.DataFrame(ROWS)
    assert as_arrow(frame[frame["id"] == "b"]).column_names == ["id", "text", "topic"]


@pytest.mark.parametrize("table", [[], 5, "text", [1, 2], {"text": ["a"]}, None])
def test_what_is_no_table_is_a_usage_error(table: Any) -> None:
    with pytest.raises(UsageError, match="A table is a path, a list of dicts"):
        as_arrow(table)


def test_a_column_of_mixed_kinds_is_named() -> None:
    with pytest.raises(UsageError, match="column 'text' has no type"):
        as_arrow([{"text": "One."}, {"text": ["Two."]}])


def frames(columns: dict[str, list[Any]]) -> list[Any]:
    """The same table as dicts and as a pandas frame, whose column of objects Arrow does not take whole."""
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return [rows, pd.DataFrame({name: pd.Series(cells, dtype=object) for name, cells in columns.items()})]


IDS = [1, "b", UUID(int=3), Decimal(4), 5.0, np.int64(6), datetime.date(2026, 1, 7)]
AS_TEXT = ["1", "b", str(UUID(int=3)), "4", "5", "6", "2026-01-07"]


@pytest.mark.parametrize("table", frames({"id": IDS, "text": ["Hello."] * 7}), ids=["dicts", "frame"])
def test_ids_of_several_types_are_what_each_is_alone(table: Any) -> None:
    arrow = as_arrow(table)
    assert arrow["id"].to_pylist() == AS_TEXT
    alone = read_tables([RowsTable(arrow.to_pylist())], CONFIG, Notes(), with_extras=False)
    given = read_tables(
        [RowsTable([{"id": cell, "text": "Hello."} for cell in IDS])], CONFIG, Notes(), with_extras=False
    )
    assert [row.id for row in alone] == [row.id for row in given] == AS_TEXT


class Decoder:
    """What `datasets` gives for a cell of an audio column."""

    def get_all_samples(self) -> Any:
        return SimpleNamespace(data=torch.from_numpy(TONE)[None], sample_rate=24_000)


TONE = np.sin(np.arange(24_000) / 20).astype(np.float32)
STEREO = np.stack([TONE, TONE], 1)
RECORDINGS = {
    "a pair": (TONE, 24_000),
    "a list": (TONE.tolist(), 24_000.0),
    "integers": ((TONE * 32767).astype(np.int16), np.int32(24_000)),
    "stereo": (STEREO, 24_000),
    "channels first": (STEREO.T, 24_000),
    "tensor": (torch.from_numpy(TONE), 24_000),
    "tensor with channels": (torch.from_numpy(TONE)[None], 24_000),
    "tensor with a gradient": (torch.from_numpy(TONE.copy()).requires_grad_(), 24_000),
    "tensor of bfloat16": (torch.from_numpy(TONE).to(torch.bfloat16), 24_000),
    "a struct": {"array": STEREO, "sampling_rate": 24_000, "path": None},
    "a decoder": Decoder(),
}


@pytest.mark.parametrize("kind", ["dicts", "frame"])
@pytest.mark.parametrize("cell", RECORDINGS.values(), ids=RECORDINGS)
def test_a_recording_is_the_same_in_a_table_as_in_a_call(tmp_path: Path, cell: Any, kind: str) -> None:
    table = frames({"text": ["Hello."], "ref_audio": [cell]})[kind == "frame"]
    written = write_table(as_arrow(table), tmp_path, {})
    (row,) = read_rows(JobConfig(data=(str(written),), out=tmp_path / "out"))
    (called,) = read_tables([RowsTable([{"text": "Hello.", "ref_audio": cell}])], CONFIG, Notes(), with_extras=False)
    assert row.ref_audio is not None and called.ref_audio is not None
    np.testing.assert_array_equal(load_reference(row.ref_audio), load_reference(called.ref_audio))
    np.testing.assert_allclose(load_reference(row.ref_audio), TONE, atol=1e-2)


def test_a_column_may_mix_every_form_of_a_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    soundfile.write("a.wav", TONE, 24_000, subtype="FLOAT")
    data = Path("a.wav").read_bytes()
    struct = {"path": "a.wav", "bytes": None}
    cells = ["a.wav", Path("a.wav"), data, struct, {"bytes": data}, *RECORDINGS.values(), None, " "]
    for table in frames({"text": ["Hello."] * len(cells), "ref_audio": cells}):
        written = write_table(as_arrow(table), tmp_path / "elsewhere", {})
        rows = list(read_rows(JobConfig(data=(str(written),), out=tmp_path / "out")))
        assert [row.failure for row in rows] == [None] * len(cells)
        assert [row.ref_audio is None for row in rows] == [False] * (len(cells) - 2) + [True] * 2
        for row in rows[:-2]:
            assert row.ref_audio is not None
            np.testing.assert_allclose(load_reference(row.ref_audio), TONE, atol=1e-2)


def test_a_frame_with_paths_and_missing_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(
        {
            "text": list("abcd"),
            "ref_audio": [Path("a.wav"), None, float("nan"), pd.NA],
            "when": [pd.NaT] * 4,
            7: [1] * 4,
        }
    )
    rows = pq.read_table(write_table(as_arrow(frame), tmp_path, {})).to_pylist()
    assert [row["ref_audio"] for row in rows] == [f"{tmp_path}/a.wav", None, None, None]
    assert [row["7"] for row in rows] == [1] * 4 and [row["when"] for row in rows] == [None] * 4


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"text": ["a", "b"], "x": [object(), 1]}, "column 'x' has no type"),
        ({"text": ["a", "b"], "seed": [2**70, [1]]}, "column 'seed' has no type"),
        ({"text": ["a", "\ud800"]}, "column 'text' has no type"),
        ({"text": ["a"], "ref_audio": [BytesIO(b"RIFF")]}, "column 'ref_audio' has no type"),
        ({"text": ["a"], "ref_audio": [(np.zeros((2, 3, 4)), 24_000)]}, "column 'ref_audio' holds a recording"),
        ({"text": ["a", "b"], "ref_audio": [(TONE, 24_000), 7]}, "column 'ref_audio' has no type"),
        ({"text": ["a", "b"], "ref_audio": [b"RIFF", 7]}, "column 'ref_audio' has no type"),
    ],
)
def test_what_no_table_holds_is_a_usage_error_that_names_the_column(columns: dict[str, list[Any]], words: str) -> None:
    for table in frames(columns):
        with pytest.raises(UsageError, match=words):
            as_arrow(table)


CARRIED: dict[str, tuple[list[Any], list[str]]] = {
    "complex": ([1j, None], ["1j"]),
    "mixed": ([{"a": 1}, [1, "b"]], ['{"a": 1}', '[1, "b"]']),
    "mixed within": ([[1, "b"], None], ['[1, "b"]']),
    "half a surrogate pair": (["\ud800", "a"], ["\ufffd", "a"]),
    "too long a time": ([datetime.timedelta.max, None], ["999999999 days, 23:59:59.999999"]),
    "an array and a text": ([np.arange(2), "a"], ["[0, 1]", "a"]),
    "deep": ([[[[["a"]]], 1], "a"], ['[[[["a"]]], 1]', "a"]),
}


@pytest.mark.parametrize(("cells", "shown"), CARRIED.values(), ids=CARRIED)
def test_what_is_only_carried_may_be_anything_with_a_text(cells: list[Any], shown: list[str]) -> None:
    for table in frames({"text": ["a", "b"], "x": cells}):
        assert [cell for cell in as_arrow(table)["x"].to_pylist() if cell is not None] == shown
        with pytest.raises(UsageError, match="column 'x' has no type"):
            as_arrow(table, {"instruct": "x"}) if shown != ["\ufffd", "a"] else as_arrow(table, {"text": "x"})


@pytest.mark.parametrize("names", [["text", "text"], ["text", 7, "7"]])
def test_two_columns_of_one_name_are_refused(names: list[Any]) -> None:
    arrow = pa.table([["a"]] * len(names), names=list(map(str, names)))
    for table in (arrow, pd.DataFrame([["a"] * len(names)], columns=names), [dict.fromkeys(names, "a")] * 2):
        if isinstance(table, list) and len(table[0]) < 3:
            continue
        with pytest.raises(UsageError, match=f"two columns named '{names[-1]}'"):
            as_arrow(table)


@pytest.mark.parametrize("row", ["Hello.", ("a", "b"), None, 7, ["text"]])
def test_a_row_that_is_no_dict_is_shown(row: Any) -> None:
    for rows in ([row], [{"text": "a"}, row]):
        with pytest.raises(UsageError, match=r"A row is a dict of columns, as \{'text': 'Hello.'\}, not"):
            list(read_tables([RowsTable(rows)], CONFIG, Notes(), with_extras=False))


def test_a_series_is_no_table() -> None:
    with pytest.raises(UsageError, match="A table is a path"):
        as_arrow(pd.Series(["a"], name="text"))


@pytest.mark.parametrize("cell", [(24_000, TONE), bytearray(b"RIFF"), memoryview(b"RIFF"), ["a.wav"], torch.zeros(4)])
def test_forms_of_recordings_are_the_same_by_both_doors(
    cell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"text": "Hello.", "ref_audio": cell}
    written = write_table(as_arrow([row, {"text": "b"}]), tmp_path / "out", {})
    (first, _) = read_rows(JobConfig(data=(str(written),), out=tmp_path / "out"))
    (called,) = read_tables([RowsTable([row])], CONFIG, Notes(), with_extras=False)
    assert first.failure == called.failure
    if called.ref_audio is not None:
        assert first.ref_audio is not None and first.ref_audio.path == called.ref_audio.path


def test_types_that_parquet_does_not_have_are_a_usage_error(tmp_path: Path) -> None:
    table = pa.table({"text": ["a"], "x": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    with pytest.raises(UsageError, match="type that Parquet does not have"):
        write_table(table, tmp_path, {})


def test_recordings_keep_their_form() -> None:
    array = {"array": np.zeros(4, np.float32), "sampling_rate": 16_000}
    rows = as_arrow([{"text": "a", "ref_audio": b"RIFF", "other": array}]).to_pylist()
    assert rows == [{"text": "a", "ref_audio": b"RIFF", "other": {"array": [0.0] * 4, "sampling_rate": 16_000}}]


def test_a_pair_of_samples_and_rate_is_a_recording() -> None:
    samples = np.zeros(4, np.float32)
    for pair in [(samples, 16_000), (samples.tolist(), np.int64(16_000))]:
        (row,) = as_arrow([{"text": "a", "ref_audio": pair}]).to_pylist()
        assert row["ref_audio"] == {"array": [0.0] * 4, "sampling_rate": 16_000}


def test_paths_of_recordings_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = [Path("a.wav"), "b/c.wav", "/abs/d.wav", "https://host/e.wav", None, " "]
    table = as_arrow([{"text": "t", "prompt_wav": cell} for cell in cells])
    path = write_table(table, tmp_path / "out", {})
    here = str(tmp_path)
    written = pq.read_table(path)["prompt_wav"].to_pylist()
    assert written == [f"{here}/a.wav", f"{here}/b/c.wav", "/abs/d.wav", "https://host/e.wav", None, " "]


def test_the_same_content_is_one_file(tmp_path: Path) -> None:
    first = write_table(as_arrow(ROWS), tmp_path, {})
    assert write_table(as_arrow(pd.DataFrame(ROWS).iloc[:1]), tmp_path, {}) != first
    assert write_table(as_arrow(ROWS), tmp_path, {}) == first
    assert len(list(tmp_path.iterdir())) == 2


def test_a_table_without_text_is_refused_before_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no column 'text'"):
        write_table(as_arrow([{"line": "One."}]), tmp_path / "out", {})
    assert not (tmp_path / "out").exists()
