"""An index over the journal: the last line of each row, with a million rows in some 60 MB."""

from __future__ import annotations

import json
import os
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tts_batch.errors import CannotContinueError
from tts_batch.store.clips import SUFFIXES, clip_files, clip_path
from tts_batch.store.journal import Outcome, list_segments, read_heads
from tts_batch.store.storage import Sizes, storage_of

if TYPE_CHECKING:
    from tts_batch.plan.rows import PlannedRow

Standing = Literal["ok", "failed", "todo"]
MAX_OPEN = 64  # segments at a time
LINE_BYTES = 4_096  # more than most lines have
_SUFFIXES = ("", *SUFFIXES)
_SUFFIX_NUMBER = {suffix: number for number, suffix in enumerate(_SUFFIXES)}
_STATUS = {"pending": 0, "ok": 1, "failed": 2}

_ENTRY = np.dtype(
    [
        ("id", np.uint64),
        ("fingerprint", np.uint64),
        ("input", np.uint64),
        ("segment", np.uint32),
        ("status", np.uint8),
        ("suffix", np.uint8),
        ("offset", np.uint64),
        ("audio_bytes", np.uint64),
        ("codes_bytes", np.uint32),
        ("audio_ms", np.uint64),
    ]
)
_TYPECODES = {1: "B", 4: "I", 8: "Q"}  # of array.array, by bytes


class JournalIndex:
    """The place of every row's last line in the journal, in 58 bytes a row."""

    def __init__(self, out: Path) -> None:
        """Scan the journal of the run folder `out` as it is now."""
        self.out = out
        self._storage = storage_of(out)
        self._segments = list_segments(out / "journal")
        self._lines = _Lines(self._segments)
        self._entries = _scan(self._segments)
        self._ids = np.ascontiguousarray(self._entries["id"])

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def ok(self) -> int:
        return int(np.count_nonzero(self._entries["status"] == _STATUS["ok"]))

    @property
    def failed(self) -> int:
        return int(np.count_nonzero(self._entries["status"] == _STATUS["failed"]))

    @property
    def audio_s(self) -> float:
        return float(self._entries["audio_ms"].sum()) / 1_000

    def standing(self, planned: PlannedRow, *, mixed: bool = False) -> Standing:
        """Return what a run that resumes does with a row: keep it ("ok", "failed") or make it ("todo").

        A row is kept when its last line is of the same row made in the same way (with `mixed`: of the same row), and,
        if that is ok, when its clip, and its codes if they were saved, exist with their sizes.
        """
        entry = self._find_valid(planned, mixed)
        if entry is None or entry["status"] == _STATUS["pending"]:
            return "todo"
        if entry["status"] == _STATUS["failed"]:
            return "failed"
        return "ok" if self._has_files(planned.row.id, entry) else "todo"

    def _has_files(self, row_id: str, entry: np.void) -> bool:
        """Whether the clip of an ok row, and its codes if they were saved, exist with their sizes."""
        files = [(_SUFFIXES[entry["suffix"]], int(entry["audio_bytes"]))]
        if entry["codes_bytes"]:
            files.append((".npy", int(entry["codes_bytes"])))
        return all(self._size(clip_path(row_id, suffix)) == size for suffix, size in files)

    @cached_property
    def _size(self) -> Sizes:
        return self._storage.sizes(len(self))

    def forget_clip(self, row_id: str) -> None:
        """Remove the clip of an outdated line, before the row is made again."""
        if self._find(row_id) is not None:
            self._storage.remove(name for name in clip_files(row_id) if self._size(name) is not None)

    def outcome(self, planned: PlannedRow, *, mixed: bool = False, with_files: bool = False) -> Outcome | None:
        """Read a row's last line; None when there is none, or when it is of another input.

        `with_files`: None too for an ok row whose clip or codes are missing, and so are still to be made.
        """
        entry = self._find_valid(planned, mixed)
        if entry is None:
            return None
        if with_files and entry["status"] == _STATUS["ok"] and not self._has_files(planned.row.id, entry):
            return None
        outcome = self._read(entry)
        return outcome if outcome.id == planned.row.id else None

    def reopened(self, planned: PlannedRow, *, mixed: bool = False) -> Outcome | None:
        """Read the line that made a row pending again; None when its last line is another."""
        entry = self._find_valid(planned, mixed)
        return self._read(entry) if entry is not None and entry["status"] == _STATUS["pending"] else None

    def last_line(self, row_id: str) -> Outcome | None:
        """Read a row's last line, of whatever input."""
        entry = self._find(row_id)
        return None if entry is None else self._read(entry)

    @cached_property
    def _made(self) -> tuple[np.ndarray[Any, np.dtype[np.uint64]], np.ndarray[Any, np.dtype[np.void]]]:
        """The ok rows by their fingerprints, sorted."""
        ok = self._entries[self._entries["status"] == _STATUS["ok"]]
        ok = ok[np.argsort(ok["fingerprint"], kind="stable")]
        return np.ascontiguousarray(ok["fingerprint"]), ok

    def made(self, fingerprint: str) -> Outcome | None:
        """Read the line of an ok row of this fingerprint, whatever its id, whose clip is there; None without one."""
        fingerprints, entries = self._made
        key = np.uint64(hash_id(fingerprint))
        place = int(fingerprints.searchsorted(key))
        if place == len(entries) or fingerprints[place] != key:
            return None
        outcome = self._read(entries[place])
        return outcome if self._has_files(outcome.id, entries[place]) else None

    def clip_bytes(self, row: Mapping[str, Any]) -> int | None:
        """Return the size of the clip of a manifest's ok row; None when the row's last line is of another clip."""
        entry = self._find(row["id"])
        if (
            entry is None
            or entry["status"] != _STATUS["ok"]
            or int(entry["fingerprint"]) != hash_id(row["fingerprint"])
        ):
            return None
        return int(entry["audio_bytes"]) if int(entry["audio_ms"]) == round(row["duration_s"] * 1_000) else None

    def failures(self) -> Iterator[Outcome]:
        """Read the last lines of the rows that failed."""
        return self._read_all(self._entries["status"] == _STATUS["failed"])

    def clips_beside(self, ids: array[int]) -> Iterator[Outcome]:
        """Read the last lines of the rows with a clip whose ids, as `hash_id` gives them, are not among `ids`."""
        known = np.isin(self._ids, np.frombuffer(ids, np.uint64)) if len(ids) else np.zeros(len(self), np.bool_)
        return self._read_all((self._entries["status"] == _STATUS["ok"]) & ~known)

    def _read_all(self, chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> Iterator[Outcome]:
        return map(self._read, np.sort(self._entries[chosen], order=["segment", "offset"]))

    def _read(self, entry: np.void) -> Outcome:
        """Raises CannotContinueError for a line that was damaged after it was scanned."""
        number, offset = int(entry["segment"]), int(entry["offset"])
        try:
            return Outcome.from_line(self._lines.read(number, offset))
        except (ValueError, KeyError, TypeError):
            segment = self._segments[number]
            message = f"The line at byte {offset} of {segment} is damaged: delete that line, and its row is made again."
            raise CannotContinueError(message) from None

    def _find_valid(self, planned: PlannedRow, mixed: bool) -> np.void | None:
        entry = self._find(planned.row.id)
        if entry is None or int(entry["fingerprint"]) == hash_id(planned.fingerprint):
            return entry
        return entry if mixed and int(entry["input"]) == hash_id(input_digest(planned)) else None

    def _find(self, row_id: str) -> np.void | None:
        if not len(self._ids):
            return None
        key = np.uint64(hash_id(row_id))
        position = int(self._ids.searchsorted(key))
        if position == len(self._ids) or self._ids[position] != key:
            return None
        entry: np.void = self._entries[position]
        return entry


class _Lines:
    """Lines of segments by their offsets. The segments read last stay open, since opening is slow on network disks."""

    def __init__(self, segments: list[Path]) -> None:
        self._segments = segments
        self._open: OrderedDict[int, int] = OrderedDict()  # number → descriptor; least recently used first

    def read(self, number: int, offset: int) -> bytes:
        descriptor = self._open.pop(number, None)
        if descriptor is None:
            if len(self._open) >= MAX_OPEN:
                os.close(self._open.popitem(last=False)[1])
            descriptor = os.open(self._segments[number], os.O_RDONLY)
        self._open[number] = descriptor
        line = b""
        while b"\n" not in line and (more := os.pread(descriptor, LINE_BYTES, offset + len(line))):
            line += more
        return line.partition(b"\n")[0]

    def __del__(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)


def input_digest(planned: PlannedRow) -> str:
    """Return a hash of the row in the table, independent of the run's settings."""
    row = planned.row
    ref_text = None if row.x_vector_only else row.ref_text
    content = (row.task, row.text, row.language, row.speaker, row.instruct, planned.reference_key, ref_text)
    options = (row.x_vector_only, row.non_streaming, row.seed, row.max_frames)
    return blake2b(json.dumps((*content, *options)).encode(), digest_size=16).hexdigest()


def _scan(segments: list[Path]) -> np.ndarray[Any, np.dtype[np.void]]:
    columns = {name: array(_TYPECODES[_ENTRY[name].itemsize]) for name in _ENTRY.names or ()}
    for number, segment in enumerate(segments):
        for head in read_heads(segment):
            if (suffix := _SUFFIX_NUMBER.get(head.suffix)) is None:
                continue  # damaged
            columns["id"].append(hash_id(head.row_id))
            columns["fingerprint"].append(hash_id(head.fingerprint))
            columns["input"].append(hash_id(head.input_digest))
            columns["segment"].append(number)
            columns["status"].append(_STATUS[head.status])
            columns["suffix"].append(suffix)
            columns["offset"].append(head.offset)
            columns["audio_bytes"].append(head.audio_bytes)
            columns["codes_bytes"].append(head.codes_bytes)
            columns["audio_ms"].append(round(head.duration_s * 1_000))
    entries = np.empty(len(columns["id"]), _ENTRY)
    while columns:  # frees each column once it is copied
        name, values = columns.popitem()
        entries[name] = np.frombuffer(values, _ENTRY[name]) if len(values) else 0
    newest_first = entries[::-1]
    _, last = np.unique(newest_first["id"], return_index=True)  # of equal ids, the first: the newest line
    return newest_first[last]


def hash_id(text: str) -> int:
    """Return 64 bits of the hash by which ids, and fingerprints, are compared."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
