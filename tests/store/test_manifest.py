"""The manifest: fixed columns first, the input's others after, whatever their types turn out to be."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tts_batch.plan.rows import PlannedRow
from tts_batch.records import Failure, RefAudio, Row
from tts_batch.store import manifest
from tts_batch.store.journal import Outcome
from tts_batch.store.manifest import Totals, write_manifests
from tts_batch.store.schema import SCHEMA


def write(out: Path, extras: list[Mapping[str, Any]], **made: Outcome) -> Totals:
    rows = [PlannedRow(Row(n, f"r{n}", f"t:{n}", text="x", extras=extra)) for n, extra in enumerate(extras)]
    return write_manifests(out, lambda: rows, lambda planned: made.get(planned.row.id))


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "ROW_GROUP_ROWS", 4)
    monkeypatch.setattr(manifest, "BATCH_ROWS", 2)


def extra_columns(out: Path) -> pa.Table:
    table = pq.read_table(out / "manifest.parquet")
    assert table.schema.names[: len(SCHEMA)] == SCHEMA.names
    return table.drop_columns(SCHEMA.names)


def test_the_fixed_columns_are_those_of_the_contract() -> None:
    contract = (
        "row_index, id, status, reason, message, audio, duration_s, sample_rate, num_frames, max_frames, "
        "finish_reason, eos, attempts, seed, attempt_seeds, codes, source, text, task, language, speaker, instruct, "
        "ref_audio, ref_text, x_vector_only, non_streaming, effective_language, effective_speaker, instruct_applied, "
        "model, model_revision, engine, runner, dtype, fingerprint, peak, rms_dbfs, clipped_samples, checks, num_pieces"
    )
    assert SCHEMA.names == contract.split(", ")


def test_every_input_row_is_there_once_in_input_order(tmp_path: Path) -> None:
    made = {f"r{n}": Outcome(f"r{n}", "f", "i", "ok", duration_s=2.0, checks={"noise": 1}) for n in range(0, 11, 2)}
    made["r3"] = Outcome("r3", "f", "i", "failed", reason="stalled", message="No row ended.")
    totals = write(tmp_path, [{}] * 11, **made)
    assert (totals.ok, totals.failed, totals.pending, totals.audio_s) == (6, 1, 4, 12.0)
    assert totals.reasons == {"stalled": 1}
    file = pq.ParquetFile(tmp_path / "manifest.parquet")
    assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [4, 4, 3]
    rows = file.read().to_pylist()
    assert [row["row_index"] for row in rows] == list(range(11))
    assert [row["status"] for row in rows[:4]] == ["ok", "pending", "ok", "failed"]
    assert rows[0]["checks"] == '{"noise":1}'
    assert [row["id"] for row in pq.read_table(tmp_path / "failures.parquet").to_pylist()] == ["r3"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["failures.parquet", "manifest.parquet"]


def test_a_row_that_failed_in_the_plan_stays_failed(tmp_path: Path) -> None:
    failure = Failure("bad_text", "It holds half a character.")
    rows = [PlannedRow(Row(0, "a", "t:1", text="\ud83d oh", extras={"note": "\ud83d"}, failure=failure))]
    write_manifests(tmp_path, lambda: rows, lambda _: Outcome("a", "f", "i", "ok"))
    (row,) = pq.read_table(tmp_path / "manifest.parquet").to_pylist()
    assert (row["status"], row["reason"], row["text"], row["note"]) == ("failed", "bad_text", "\\ud83d oh", "\\ud83d")


def test_references_are_shown_by_label_never_by_bytes(tmp_path: Path) -> None:
    rows = [PlannedRow(Row(0, "a", "t:1", ref_audio=RefAudio(data=b"RIFF", label="sha256:12")))]
    write_manifests(tmp_path, lambda: rows, lambda _: None)
    assert pq.read_table(tmp_path / "manifest.parquet")["ref_audio"].to_pylist() == ["sha256:12"]


def test_references_are_not_held_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "BATCH_ROWS", 50)
    rows = (PlannedRow(Row(n, f"r{n}", "t:1", ref_audio=RefAudio(data=bytes(1 << 20), label="x"))) for n in range(50))
    tracemalloc.start()
    write_manifests(tmp_path, lambda: rows, lambda _: None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 << 20


def test_types_grow_with_the_values(tmp_path: Path) -> None:
    late = [{"whole": 1, "real": 1, "any": 1, "none": None, "list": [1]}] * 5
    late += [{"whole": 2, "real": 0.5, "any": "x", "none": None, "list": None, "late": True}]
    write(tmp_path, late)
    table = extra_columns(tmp_path)
    assert table.schema.names == ["whole", "real", "any", "none", "list", "late"]
    assert table["whole"].to_pylist() == [1] * 5 + [2]
    assert table["real"].to_pylist() == [1.0] * 5 + [0.5]
    assert table["any"].to_pylist() == ["1"] * 5 + ["x"]
    assert table["list"].to_pylist() == [[1]] * 5 + [None]
    assert table["late"].to_pylist() == [None] * 5 + [True]


def test_what_parquet_cannot_hold_is_text(tmp_path: Path) -> None:
    odd: list[Mapping[str, Any]] = [{"empty": {}, "late": {}, "inner": [{"a": {}}], "number": 2**60 + 1}] * 5
    write(tmp_path, [*odd, {"empty": None, "late": {"a": 1}, "inner": [], "number": 0.5}])
    table = extra_columns(tmp_path)
    assert table["empty"].to_pylist() == ["{}"] * 5 + [None]
    assert table["late"].to_pylist() == [{"a": None}] * 5 + [{"a": 1}]
    assert table["inner"].to_pylist() == ["[{'a': {}}]"] * 5 + ["[]"]
    assert table["number"].to_pylist() == [str(2**60 + 1)] * 5 + ["0.5"]


@pytest.mark.parametrize(
    ("cell", "stored"),
    [
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ([UUID(int=1)], "[UUID('00000000-0000-0000-0000-000000000001')]"),
        (np.datetime64("20000-01-01"), "20000-01-01"),
        ({"day": np.datetime64("20000-01-01")}, "{'day': np.datetime64('20000-01-01')}"),
        (np.datetime64("2020-01-01T00:00:00.000000001"), "2020-01-01T00:00:00.000000001"),
        (datetime(2020, 1, 1, tzinfo=timezone(timedelta(seconds=1))), "2020-01-01 00:00:00+00:00:01"),
        (timedelta.max, "999999999 days, 23:59:59.999999"),
        (1j, "1j"),
        (Path("a"), "a"),
        ({1: 2, "a": 3}, "{1: 2, 'a': 3}"),
        (Decimal("NaN"), "NaN"),
        (2**70, str(2**70)),
        (date(9999, 12, 31), date(9999, 12, 31)),
        (Decimal("1.50"), Decimal("1.50")),
        (np.float32(0.5), 0.5),
        (datetime(1, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)),
    ],
    ids=repr,
)
def test_cells_of_any_type_are_readable(tmp_path: Path, cell: object, stored: object) -> None:
    write(tmp_path, [{"x": None}, {"x": cell}, {}])
    column = pq.read_table(tmp_path / "manifest.parquet")["x"]
    assert not isinstance(column.type, pa.BaseExtensionType)
    assert column.to_pylist() == [None, stored, None]


def test_names_of_any_characters_are_written(tmp_path: Path) -> None:
    write(tmp_path, [{"half \ud83d": 1, "end\0 less": 2, "": 3}])
    assert extra_columns(tmp_path).to_pylist() == [{"half \\ud83d": 1, "end\\0 less": 2, "": 3}]


def test_whole_numbers_are_text_as_they_were_written_wherever_the_first_text_comes(tmp_path: Path) -> None:
    write(tmp_path, [{"x": 1}, {"x": 0.5}, {"x": 2}, {"x": None}, {"x": 3}, {"x": "late"}])
    assert extra_columns(tmp_path)["x"].to_pylist() == ["1", "0.5", "2", None, "3", "late"]


_numbers = st.integers(-3, 3) | st.sampled_from([2**53 + 1, -(2**63), 2**63, 2**70]) | st.sampled_from([0.5, 1e300])
_cells = st.recursive(
    st.none() | st.booleans() | _numbers | st.text("a1\ud83d", max_size=2) | st.dates() | st.uuids() | st.decimals(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.fixed_dictionaries({}, optional={"x": _cells, "y": _cells}), min_size=1, max_size=6))
def test_no_mixture_of_cells_ends_a_run(extras: list[Mapping[str, Any]]) -> None:
    with TemporaryDirectory() as folder:
        totals = write(Path(folder), extras)
        assert totals.pending == len(extras)
        assert len(extra_columns(Path(folder)).to_pylist()) == len(extras)


def test_names_that_collide_get_a_prefix(tmp_path: Path) -> None:
    write(tmp_path, [{"status": "s", "input_status": "t", "seed": 1, "mine": 2}])
    assert extra_columns(tmp_path).to_pylist() == [
        {"input_input_status": "s", "input_status": "t", "input_seed": 1, "mine": 2}
    ]


def test_an_error_leaves_the_old_manifest(tmp_path: Path) -> None:
    write(tmp_path, [{}])
    before = (tmp_path / "manifest.parquet").read_bytes()

    def broken() -> Any:
        yield PlannedRow(Row(0, "a", "t:1"))
        raise OSError("the table is gone")

    with pytest.raises(OSError, match="gone"):
        write_manifests(tmp_path, broken, lambda _: None)
    assert (tmp_path / "manifest.parquet").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["failures.parquet", "manifest.parquet"]
