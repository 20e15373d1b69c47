"""How a clip process writes clips: first aside, then under their names; or at once, where a name appears with its file.

Files of a row are staged on many threads. `publish` gives a group of them their final names; only then are they
recorded in the journal.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Protocol

from tts_batch.object_store import ObjectStore
from tts_batch.store.journal import sync_folder

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
Staged = list[tuple[Path, Path]]
"""Temporary name → final name, of each file of a row; empty where files already have theirs."""

Sync = Callable[[Callable[[Path], None], Iterable[Path]], object]


class ClipSink(Protocol):
    """Where clips go."""

    threads: int  # that write files at the same time
    group_s: float  # how long a group may wait for more rows: each group is a write to the journal

    def stage(self, files: Mapping[str, bytes]) -> Staged:
        """Write a row's files by their names in the run folder; all or none of them. Raises OSError, StoreError."""
        ...

    def publish(self, rows: Sequence[Staged], each: Sync) -> list[OSError | None]:
        """Make the files of some rows durable under their names, and return the error of each row, or None.

        `each` calls a function for each of some folders, on threads.
        """
        ...

    def close(self) -> None: ...


class LocalClipSink:
    """A folder of a file system: a file is synced, renamed, and then its folder is synced."""

    threads = 8  # a disk takes many writes at once, and each waits for it, 20 ms on some
    group_s = 1.0

    def __init__(self, out: Path, temporary: Path) -> None:
        self._out, self._temporary = out, temporary
        self._temporary.mkdir(parents=True, exist_ok=True)
        self._file_numbers = count()

    def stage(self, files: Mapping[str, bytes]) -> Staged:
        moves = []
        for path, content in files.items():
            temporary = self._temporary / str(next(self._file_numbers))
            moves.append((temporary, self._out / path))
            try:
                with temporary.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError:
                for written, _ in moves:
                    written.unlink(missing_ok=True)
                raise
        return moves

    def publish(self, rows: Sequence[Staged], each: Sync) -> list[OSError | None]:
        folders = {target.parent for moves in rows for _, target in moves}
        if any(not folder.is_dir() for folder in folders):
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self._out)
        errors: list[OSError | None] = []
        for moves in rows:
            try:
                for temporary, target in moves:
                    temporary.rename(target)
                errors.append(None)
            except OSError as error:
                errors.append(error)
        each(sync_folder, folders)
        return errors

    def close(self) -> None:
        with suppress(OSError):  # what a failure has left in it stays until the run is resumed
            self._temporary.rmdir()


class StoredClipSink:
    """An object store: a file is there under its final name, whole, or not at all."""

    threads = 24  # a request waits for the store, some 50 ms
    group_s = 5.0  # a group is an object of the journal, which a run that resumes reads

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def stage(self, files: Mapping[str, bytes]) -> Staged:
        for name, content in files.items():
            self._store.write(name, content)
        return []

    def publish(self, rows: Sequence[Staged], each: Sync) -> list[OSError | None]:
        return [None] * len(rows)

    def close(self) -> None:
        """Nothing is left."""


def key_of(name: str) -> int:
    """Return a hash of a file's name, to keep a million of them."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")
