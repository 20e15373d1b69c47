"""The manifest: one row for every input row, in input order, compacted from plan and journal in bounded memory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tts_batch.store.journal import Outcome, sync_folder
from tts_batch.store.schema import FAILURES, FAILURES_SCHEMA, MANIFEST, SCHEMA

if TYPE_CHECKING:
    from tts_batch.plan.rows import PlannedRow

ROW_GROUP_ROWS = 50_000
_BATCH_ROWS = 2_000  # Python objects at a time; the rest of a row group waits as Arrow data


@dataclass(slots=True)
class Totals:
    """Counts over all input rows."""

    ok: int = 0
    failed: int = 0
    pending: int = 0
    audio_s: float = 0.0  # of the ok rows
    reasons: dict[str, int] = field(default_factory=dict)  # reason → failed rows
    is_estimate: bool = False  # and no manifest says so yet

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
    """Write manifest.parquet and failures.parquet, each whole or not at all; return the totals.

    `planned` reads the rows of the plan from the start, `find` a row's journalled outcome. Types of the input's other
    columns come from their values: when a late value does not fit what earlier ones promised, writing starts over.
    """
    extras = pa.schema([])
    while True:
        try:
            return _write(out, planned(), find, extras)
        except _OtherTypes as error:
            extras = error.extras


def count_rows(planned: Iterable[PlannedRow], find: Callable[[PlannedRow], Outcome | None]) -> Totals:
    """Return the totals alone."""
    totals = Totals()
    for row in planned:
        totals.count(manifest_row(row, find(row)))
    return totals


class _OtherTypes(Exception):  # noqa: N818 - not an error: what was learned about the input's other columns
    def __init__(self, extras: pa.Schema) -> None:
        super().__init__()
        self.extras = extras


def _write(
    out: Path, planned: Iterable[PlannedRow], find: Callable[[PlannedRow], Outcome | None], extras: pa.Schema
) -> Totals:
    totals = Totals()
    tables = _Table(out / MANIFEST, SCHEMA, extras), _Table(out / FAILURES, FAILURES_SCHEMA, extras)
    with tables[0] as manifest, tables[1] as failures:
        rows = iter(planned)
        while batch := [(manifest_row(row, find(row)), row.row.extras) for row in islice(rows, _BATCH_ROWS)]:
            values = [row for row, _ in batch]  # which hold no recordings, as the rows of the plan may
            carried = [extras for _, extras in batch]
            for row in values:
                totals.count(row)
            manifest.add(values, carried)
            bad = [place for place, row in enumerate(values) if row["status"] == "failed"]
            failures.add([values[place] for place in bad], [carried[place] for place in bad])
        manifest.finish()
        failures.finish()
    return totals


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
    """A bad row may hold half a character, which no UTF-8 file can: it is written as its escape."""
    return text.encode("utf-8", "backslashreplace").decode()


class _Table:
    """A Parquet file under a temporary name until `finish`, written row group by row group."""

    def __init__(self, path: Path, fixed: pa.Schema, extras: pa.Schema) -> None:
        self._path = path
        self._temporary = path.with_name(f".{path.name}.tmp")
        self._fixed, self._extras = fixed, extras
        self._schema = pa.schema([*fixed, *_named_apart(_stored(extras))])
        self._waiting: list[pa.Table] = []
        self._rows = 0
        self._writer = pq.ParquetWriter(self._temporary, self._schema, compression="zstd")

    def __enter__(self) -> _Table:
        return self

    def __exit__(self, *exception: object) -> None:
        with suppress(OSError):
            self._writer.close()
        self._temporary.unlink(missing_ok=True)

    def add(self, values: list[dict[str, Any]], carried: list[Mapping[str, Any]]) -> None:
        """Add rows: the fixed columns, and the input's other columns beside them."""
        fixed = pa.Table.from_pylist(values, self._fixed)
        other = list(_columns(carried, self._extras))
        self._waiting.append(pa.table([*fixed.columns, *other], schema=self._schema))
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

    def _write_group(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting), row_group_size=ROW_GROUP_ROWS)
        self._waiting, self._rows = [], 0


def _columns(carried: list[Mapping[str, Any]], extras: pa.Schema) -> Iterator[pa.Array]:
    """Yield the input's other columns as `extras` has them stored; raise _OtherTypes with types that fit these too."""
    names = dict.fromkeys(extras.names) | dict.fromkeys(name for row in carried for name in row)
    found = [_array([row.get(name) for row in carried]) for name in names]
    widened = pa.schema(
        [(name, _common(extras.field(name).type if name in extras.names else pa.null(), array.type))
         for name, array in zip(names, found, strict=True)]
    )  # fmt: skip
    if widened != extras:
        raise _OtherTypes(widened)
    for place, (column, array) in enumerate(zip(_stored(extras), found, strict=True)):
        try:
            yield array if array.type == column.type else _cast(array, column.type)
        except pa.ArrowInvalid:  # a whole number that no float is
            raise _OtherTypes(extras.set(place, pa.field(column.name, pa.string()))) from None


def _stored(extras: pa.Schema) -> pa.Schema:
    """Return how columns are written: of structs without a field, which Parquet has not, the text."""
    return pa.schema([pa.field(column.name, pa.string()) if _is_hollow(column.type) else column for column in extras])


def _is_hollow(kind: pa.DataType) -> bool:
    """Whether `kind` is, or contains, a struct without a field: all there was of it were empty ones."""
    if pa.types.is_struct(kind) and not kind.num_fields:
        return True
    return any(_is_hollow(kind.field(place).type) for place in range(kind.num_fields))


def _array(values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
        return pa.array([None if value is None else _writable(str(value)) for value in values], pa.string())


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the narrowest type that holds both; text when there is none."""
    if one == other or pa.types.is_null(other):
        return one
    try:
        both = pa.unify_schemas([pa.schema([("_", one)]), pa.schema([("_", other)])], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.string()
    return both.field(0).type


def _cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if pa.types.is_string(wanted):
        return pa.array([None if value is None else str(value) for value in array.to_pylist()], wanted)
    return array.cast(wanted)


def _named_apart(extras: pa.Schema) -> list[pa.Field]:
    """Rename to `input_NAME` what would collide with a fixed column or with another of these."""
    taken = set(FAILURES_SCHEMA.names)
    columns = []
    for column in extras:
        name = column.name
        while name in taken or (name != column.name and name in extras.names):
            name = f"input_{name}"
        taken.add(name)
        columns.append(column.with_name(name))
    return columns
