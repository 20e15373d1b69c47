"""The manifest: one row for every input row, in input order, compacted from plan and journal in bounded memory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tts_batch.store.journal import Outcome, sync_folder
from tts_batch.store.schema import FAILURES, FAILURES_SCHEMA, MANIFEST, SCHEMA
from tts_batch.store.storage import storage_of

if TYPE_CHECKING:
    from tts_batch.plan.rows import PlannedRow

ROW_GROUP_ROWS = 50_000
Types = dict[str, pa.DataType]
"""The input's other columns, in the order in which they first come up, with the types of their values."""

BATCH_ROWS = 2_000  # Python objects at a time; the rest of a row group waits as Arrow data


@dataclass(slots=True)
class Totals:
    """Counts over all input rows."""

    ok: int = 0
    failed: int = 0
    pending: int = 0
    audio_s: float = 0.0  # of the ok rows
    reasons: dict[str, int] = field(default_factory=dict)  # reason → failed rows
    is_estimate: bool = False  # from the journal and the plan; there is no manifest yet

    def count(self, row: Mapping[str, Any]) -> None:
        """Add a manifest row."""
        setattr(self, row["status"], getattr(self, row["status"]) + 1)
        self.audio_s += row.get("duration_s") or 0.0
        if (reason := row.get("reason")) is not None:
            self.reasons[reason] = self.reasons.get(reason, 0) + 1

    @classmethod
    def estimate(cls, ok: int, failed: int, audio_s: float, rows: int, in_plan: Mapping[str, int]) -> Totals:
        """Sum up from the journal and the plan alone, when there is no time to read the input again."""
        failed += sum(in_plan.values())
        return cls(ok, failed, max(rows - ok - failed, 0), audio_s, dict(in_plan), is_estimate=True)


def write_manifests(
    out: Path, planned: Callable[[], Iterable[PlannedRow]], find: Callable[[PlannedRow], Outcome | None]
) -> Totals:
    """Write manifest.parquet and failures.parquet, each atomically; return the totals.

    `planned` reads the rows of the plan from the start, `find` a row's journalled outcome. Types of the input's other
    columns come from their values: when a late value needs a wider type than earlier ones, writing starts over.
    """
    types: Types = {}
    while True:
        totals, needed = _write(out, planned(), find, types)
        if needed == types:
            return totals
        types = needed


def count_rows(planned: Iterable[PlannedRow], find: Callable[[PlannedRow], Outcome | None]) -> Totals:
    """Return the totals without writing."""
    totals = Totals()
    for row in planned:
        totals.count(manifest_row(row, find(row)))
    return totals


def _write(
    out: Path, planned: Iterable[PlannedRow], find: Callable[[PlannedRow], Outcome | None], types: Types
) -> tuple[Totals, Types]:
    """Write both files with other columns of these types; return the totals, and the types that the rows need.

    When those differ, nothing was written, and the totals are incomplete.
    """
    totals = Totals()
    columns = _stored_columns(types)
    tables = _Table(out / MANIFEST, SCHEMA, columns), _Table(out / FAILURES, FAILURES_SCHEMA, columns)
    with tables[0] as manifest, tables[1] as failures:
        rows = iter(planned)
        while batch := [(manifest_row(row, find(row)), row.row.extras) for row in islice(rows, BATCH_ROWS)]:
            values = [row for row, _ in batch]  # without the recordings that planned rows may hold
            others, needed = _other_columns([extras for _, extras in batch], types)
            if needed != types:
                return totals, needed
            for row in values:
                totals.count(row)
            manifest.add(values, others)
            failed = [place for place, row in enumerate(values) if row["status"] == "failed"]
            failures.add(
                [values[place] for place in failed], [column.take(pa.array(failed, pa.int64())) for column in others]
            )
        manifest.finish()
        failures.finish()
    return totals, types


def manifest_row(planned: PlannedRow, outcome: Outcome | None) -> dict[str, Any]:
    """Return the fixed columns of one input row: its plan, and how it ended if it has."""
    row = planned.row
    values: dict[str, Any] = {
        "row_index": row.row_index,
        "id": row.id,
        "status": "pending",
        "max_frames": planned.max_frames,
        "seed": planned.seed,
        "source": row.source,
        "text": row.text,
        "task": row.task,
        "language": row.language,
        "speaker": row.speaker,
        "instruct": row.instruct,
        "ref_audio": row.ref_audio.label if row.ref_audio else None,
        "ref_text": row.ref_text,
        "x_vector_only": row.x_vector_only,
        "non_streaming": row.non_streaming,
        "fingerprint": planned.fingerprint,
    }
    if row.failure is not None:
        values |= {"status": "failed", "reason": row.failure.reason, "message": row.failure.message, "attempts": 0}
        values |= {"max_frames": None, "seed": row.seed, "fingerprint": None}
    elif outcome is not None and outcome.status == "pending":
        values |= {"attempts": outcome.attempts, "attempt_seeds": outcome.attempt_seeds}
    elif outcome is not None:
        values |= {name: getattr(outcome, name) for name in _FROM_OUTCOME}
        values["failed_attempts"] = outcome.failed_attempts
        values["checks"] = json.dumps(outcome.checks, separators=(",", ":")) if outcome.checks else None
    if values["status"] == "failed":
        values |= {name: _writable(value) for name, value in values.items() if isinstance(value, str)}
    return values


_FROM_OUTCOME = [field.name for field in SCHEMA if field.name in Outcome.__dataclass_fields__]


def _writable(text: str) -> str:
    """Escape halves of surrogate pairs, which a bad row may hold and UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode()


class _Table:
    """A Parquet file under a temporary name until `finish`, written row group by row group."""

    def __init__(self, path: Path, fixed: pa.Schema, others: list[pa.Field]) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.tmp")
        self._fixed = fixed
        self._schema = pa.schema([*fixed, *others])
        self._waiting: list[pa.Table] = []
        self._rows = 0
        self._writer = pq.ParquetWriter(self._temporary, self._schema, compression="zstd")

    def __enter__(self) -> _Table:
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(OSError):
            self._writer.close()
        self._temporary.unlink(missing_ok=True)

    def add(self, values: list[dict[str, Any]], others: list[pa.Array]) -> None:
        """Add rows: the fixed columns, and the input's other columns beside them."""
        fixed = pa.Table.from_pylist(values, self._fixed)
        self._waiting.append(pa.table([*fixed.columns, *others], schema=self._schema))
        self._rows += len(values)
        if self._rows >= ROW_GROUP_ROWS:
            self._write_group()

    def finish(self) -> None:
        """Make the file durable under its final name."""
        self._write_group()
        self._writer.close()
        with self._temporary.open("rb") as file:
            os.fsync(file.fileno())
        self._temporary.rename(self._path)
        sync_folder(self._path.parent)
        storage_of(self._path.parent).publish(self._path)

    def _write_group(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting), row_group_size=ROW_GROUP_ROWS)
        self._waiting, self._rows = [], 0


def _other_columns(carried: list[Mapping[str, Any]], types: Types) -> tuple[list[pa.Array], Types]:
    """Return the input's other columns of some rows, and the types that hold both these and `types`."""
    columns, needed = [], {}
    for name in types | dict.fromkeys(name for row in carried for name in row):
        values = [row.get(name) for row in carried]
        array = _array(values)
        kind = _common_type(types.get(name, pa.null()), array.type)
        column = _cast(array, kind)
        if column is None:
            kind = pa.string()
        columns.append(_text(values) if column is None or _stored_type(kind) != kind else column)
        needed[name] = kind
    return columns, needed


def _array(values: list[Any]) -> pa.Array:
    """Return an Arrow array of values; of their text, where Arrow has no type for them or readers of it may fail."""
    try:
        array = pa.array(values)
        if _is_readable(array.type):
            if _has_times(array.type):
                array.to_pylist()  # raises for dates that Python lacks, such as those after 9999
            return array
    except Exception:  # which one depends on the types of the values
        pass
    return _text(values)


def _text(values: list[Any]) -> pa.Array:
    return pa.array([None if value is None else _writable(str(value)) for value in values], pa.string())


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the narrowest type that holds both; text if there is none."""
    if one == other or pa.types.is_null(other):
        return one
    try:
        both = pa.unify_schemas([pa.schema([("_", one)]), pa.schema([("_", other)])], promote_options="permissive")
    except pa.ArrowException:
        return pa.string()
    return both.field(0).type


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Return the array in a wider type; None if that cannot hold each value exactly, or is text."""
    if array.type == kind:
        return array
    if pa.types.is_string(kind) and not pa.types.is_null(array.type):
        return None
    try:
        return array.cast(kind)
    except pa.ArrowException:
        return None


def _is_readable(kind: pa.DataType) -> bool:
    """Whether every reader of Parquet knows `kind`: few know extension types, as of UUIDs, and Python has no ns."""
    if isinstance(kind, pa.BaseExtensionType) or getattr(kind, "unit", None) == "ns":
        return False
    return all(map(_is_readable, _inner_types(kind)))


def _has_times(kind: pa.DataType) -> bool:
    return pa.types.is_temporal(kind) or any(map(_has_times, _inner_types(kind)))


def _has_empty_struct(kind: pa.DataType) -> bool:
    """Whether `kind` is, or contains, a struct without a field: all of its values were empty."""
    return (pa.types.is_struct(kind) and not kind.num_fields) or any(map(_has_empty_struct, _inner_types(kind)))


def _inner_types(kind: pa.DataType) -> list[pa.DataType]:
    return [kind.field(place).type for place in range(kind.num_fields)]


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that a column is written in: Parquet has no struct without a field."""
    return pa.string() if _has_empty_struct(kind) else kind


def _stored_columns(types: Types) -> list[pa.Field]:
    return [pa.field(name, _stored_type(kind)) for name, kind in zip(_dedupe_names(types), types.values(), strict=True)]


def _dedupe_names(names: Collection[str]) -> list[str]:
    """Rename to `input_NAME` what would collide with a fixed column or with another of these."""
    taken = set(FAILURES_SCHEMA.names)
    deduped = []
    for name in names:
        new = _writable(name).replace("\0", "\\0")  # which ends a name in Parquet
        while new in taken or (new != name and new in names):
            new = f"input_{new}"
        taken.add(new)
        deduped.append(new)
    return deduped
