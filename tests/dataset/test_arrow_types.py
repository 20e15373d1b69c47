"""Columns of every Arrow type: ids, seeds and texts are read, and what is carried through never ends a run."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.dataset.support import ReadRows, reasons
from tts_batch.config import JobConfig
from tts_batch.dataset.notes import Notes
from tts_batch.dataset.rows import read_rows

ENCODED_RUNS = pa.RunEndEncodedArray.from_arrays(pa.array([1, 2], pa.int32()), pa.array(["x", "y"]))
IDS = [UUID(int=1), UUID(int=(1 << 127) + 7)]


def save(read: ReadRows, columns: dict[str, Any], name: str = "t.arrow") -> str:
    table = pa.table(columns)
    if name.endswith(".parquet"):
        pq.write_table(table, read.folder / name)
    else:  # which holds types that Parquet has not
        with pa.ipc.new_stream(read.folder / name, table.schema) as writer:
            writer.write_table(table)
    return name


SIMPLE = {
    "uuid": (pa.array([value.bytes for value in IDS], pa.uuid()), [str(value) for value in IDS]),
    "16 bytes": (pa.array([value.bytes for value in IDS], pa.binary(16)), [str(value) for value in IDS]),
    "decimal": (pa.array([Decimal(7), Decimal(10) ** 30], pa.decimal128(38, 0)), ["7", "1" + "0" * 30]),
    "decimal with places": (pa.array([Decimal("7.00"), Decimal("7.50")], pa.decimal128(9, 2)), ["7", "7.50"]),
    "decimal256": (pa.array([Decimal(7), Decimal(8)], pa.decimal256(50, 0)), ["7", "8"]),
    "dictionary": (pa.array(["x", "y"]).dictionary_encode(), ["x", "y"]),
    "dictionary of integers": (pa.array([7, 8]).dictionary_encode(), ["7", "8"]),
    "string view": (pa.array(["x", "y"], pa.string_view()), ["x", "y"]),
    "large string": (pa.array(["x", "y"], pa.large_string()), ["x", "y"]),
    "binary view": (pa.array([b"x", b"y"], pa.binary_view()), ["x", "y"]),
    "large binary": (pa.array([b"x", b"y"], pa.large_binary()), ["x", "y"]),
    "fixed-size binary": (pa.array([b"x\0\0", b"yyy"], pa.binary(3)), ["x", "yyy"]),
    "unsigned": (pa.array([7, 2**64 - 1], pa.uint64()), ["7", str(2**64 - 1)]),
    "small": (pa.array([7, -8], pa.int8()), ["7", "-8"]),
    "date": (pa.array([datetime.date(2026, 1, 2), datetime.date(1999, 12, 31)]), ["2026-01-02", "1999-12-31"]),
    "run-end encoded": (ENCODED_RUNS, ["x", "y"]),
}  # fmt: skip


@pytest.mark.parametrize(("column", "expected"), SIMPLE.values(), ids=SIMPLE)
def test_ids_and_texts_of_every_simple_type(read: ReadRows, column: pa.Array, expected: list[str]) -> None:
    rows = read(save(read, {"id": column, "text": ["One.", "Two."]}))
    assert [None if row.failure else row.id for row in rows] == expected
    if str(column.type) != "fixed_size_binary[16]":
        rows = read(save(read, {"text": column, "ref_text": column}))
        assert [row.text for row in rows] == [row.ref_text for row in rows] == expected


@pytest.mark.parametrize(
    "column",
    [
        pa.array([Decimal(7), None], pa.decimal128(38, 0)),
        pa.array([Decimal("7.00"), None], pa.decimal128(9, 2)),
        pa.array([7, None], pa.uint64()),
        pa.array([7, None]).dictionary_encode(),
        pa.array([7.0, None], pa.float32()),
        pa.array(["7", None], pa.string_view()),
        pa.array(["7", None]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_seeds_of_every_simple_type(read: ReadRows, column: pa.Array) -> None:
    assert [row.seed for row in read(save(read, {"text": ["a", "b"], "seed": column}))] == [7, None]
    bad = read(save(read, {"text": ["a"], "seed": pa.array([Decimal("7.5")])}))
    assert reasons(bad) == ["bad_seed"]


def undecodable() -> pa.Array:
    offsets = pa.array([0, 4, 6], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"caf\xe9ok")])


FAR = "146138514283-06-19T07:45:04"  # 2**62 seconds after 1970

NOTED = {"month_day_nano_interval", "sparse_union"}
CARRIED = {
    "timestamp out of range": (pa.array([2**62, 0], pa.timestamp("s")), FAR),
    "date out of range": (pa.array([2**30, 0], pa.date32()), "2941775-04-07"),
    "milliseconds out of range": (pa.array([2**60, 0], pa.date64()), None),
    "duration out of range": (pa.array([2**62, 0], pa.duration("s")), f"{2**62} s"),
    "unknown zone": (pa.array([0, 1], pa.timestamp("s", "Mars/Olympus")), "1970-01-01T00:00:00Z"),
    "interval": (pa.array([(1, 2, 3), None], pa.month_day_nano_interval()), "1 months 2 days 3 ns"),
    "not UTF-8": (undecodable(), "caf\\xe9"),
    "in a list": (pa.array([[2**62], None], pa.list_(pa.timestamp("s"))), [FAR]),
    "in a struct": (pa.array([{"x": 2**62}, None], pa.struct([("x", pa.timestamp("s"))])), {"x": FAR}),
    "in a dictionary": (pa.array([2**62, 0], pa.timestamp("s")).dictionary_encode(), FAR),
    "map": (pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int32())), [["a", 1]]),
    "list view": (pa.array([[1], None], pa.list_view(pa.int32())), [1]),
    "opaque": (pa.ExtensionArray.from_storage(pa.opaque(pa.int64(), "x", "y"), pa.array([1, 2])), 1),
    "json": (pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", None])), "{}"),
    "tensor": (pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((2, 2, 1))), [0.0, 0.0]),
    "union": (pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 0]), pa.array(["", "a"])]), 1),
    "uuid": (pa.array([value.bytes for value in IDS], pa.uuid()), str(IDS[0])),
}  # fmt: skip


@pytest.mark.parametrize(("column", "first"), CARRIED.values(), ids=CARRIED)
def test_carried_columns_of_any_type_are_read(read: ReadRows, column: pa.Array, first: Any) -> None:
    rows = read(save(read, {"text": ["a", "b"], "x": column}))
    assert reasons(rows) == [None, None]
    is_known = not isinstance(column.type, pa.BaseExtensionType) and str(column.type).partition("<")[0] not in NOTED
    assert ("which few readers know" in "".join(read.notes)) != is_known
    if first is not None:
        assert rows[0].extras["x"] == first


TIMES = {
    "out of range": pa.array([2**62, 0], pa.timestamp("s")),
    "a date": pa.array([2**30, 0], pa.date32()),
    "unknown zone": pa.array([0, None], pa.timestamp("s", "Mars/Olympus")),
    "a duration": pa.array([2**62, 0], pa.duration("s")),
}


@pytest.mark.parametrize("column", TIMES.values(), ids=TIMES)
def test_times_that_become_text_are_noted_in_a_plan_too(read: ReadRows, column: pa.Array) -> None:
    name = save(read, {"text": ["a", "b"], "x": column, "y": pa.array([0, 1], pa.timestamp("s"))})
    read(name)
    notes = Notes()
    list(read_rows(JobConfig(data=(str(read.folder / name),), out=read.folder), notes, with_extras=False))
    assert notes.sentences() == read.notes and len(read.notes) == 1
    assert read.notes[0].startswith("column 'x' holds times that few readers know")


def test_a_text_that_is_not_utf8_fails_alone(read: ReadRows) -> None:
    rows = read(save(read, {"text": undecodable()}, "t.parquet"))
    assert reasons(rows) == ["bad_text", None] and rows[1].text == "ok"


@pytest.mark.parametrize("depth", [10, 100, 480, 900])
def test_what_is_nested_deeply_is_carried_as_text(read: ReadRows, depth: int, tmp_path: Path) -> None:
    cell = "[" * depth + '"\\ud800"' + "]" * depth
    (row,) = read.written("t.jsonl", f'{{"text": "a", "x": {cell}}}\n')
    assert row.failure is None
    assert isinstance(row.extras["x"], list if depth == 10 else str)
    if depth == 10:
        column = pa.array([row.extras["x"]])
        pq.write_table(pa.table({"x": column}), tmp_path / "x.parquet")
        assert pq.read_table(tmp_path / "x.parquet").num_rows == 1
    else:
        assert json.loads(row.extras["x"]) is not None


@pytest.mark.parametrize("rate", ["1" + "0" * 400, "1e400", "-1", "0.5", "true", "[]"])
def test_rates_that_are_none_fail_their_row(read: ReadRows, rate: str) -> None:
    line = f'{{"text": "a", "ref_audio": {{"array": [0.1], "sampling_rate": {rate}}}}}\n'
    assert reasons(read.written("t.jsonl", line + '{"text": "b"}\n')) == [
        None if rate == "true" else "ref_unreadable",
        None,
    ]


@pytest.mark.parametrize("array", ["[1e400]", "[" + "1" * 400 + "]", '[{"a": 1}]', "[[1], [2, 3]]", '["x"]'])
def test_arrays_that_are_none_fail_their_row(read: ReadRows, array: str) -> None:
    rows = read.written("t.jsonl", f'{{"text": "a", "ref_audio": {{"array": {array}, "sampling_rate": 8000}}}}\n')
    assert reasons(rows) in (["ref_unreadable"], [None])


def test_wide_tables_and_late_keys_are_read_in_linear_time(read: ReadRows) -> None:
    """Ten thousand columns, and a thousand lines with a new key each, which took minutes."""
    columns = {f"c{number}": [1] for number in range(10_000)}
    (row,) = read(save(read, {"text": ["a"], **columns}))
    assert len(row.extras) == 10_000
    rows = read.written("t.jsonl", "".join(f'{{"text": "a", "k{number}": 1}}\n' for number in range(3000)))
    assert [len(row.extras) for row in rows] == [1] * 3000
