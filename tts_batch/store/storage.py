"""Where a run folder is: on a local file system, or in an object store with a working copy of all but the clips.

The rest of the package reads and writes the run folder as paths below `out`. What a path alone cannot do everywhere
(clips, journal segments, finished files, the lock) goes through `storage_of(out)`. In a working copy, a temporary
folder of one process, a file names the store; each finished file goes there under its final name.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tts_batch.errors import TTSBatchError, UsageError
from tts_batch.object_store import THREADS, WRITABLE, ObjectStore, StoreError, check_url
from tts_batch.store.clip_sink import ClipSink, LocalClipSink, StoredClipSink, key_of
from tts_batch.store.journal import PartWriter, SegmentWriter
from tts_batch.store.lock import ObjectLock, RunLock, live_locks
from tts_batch.store.schema import FAILURES, MANIFEST

if TYPE_CHECKING:
    from tts_batch.plan.shards import Shard

MARKER = ".object-store"
_URL = re.compile(rf"({'|'.join(WRITABLE)}):/+(?=[^/])")
_CLIP = re.compile(r"[0-9a-f]{2}/[^/]+")
_HIDDEN = (".", "run.lock")
_MANY_CLIPS = 20_000  # from here on, their 256 folders are listed side by side
_PREFIX = f"tts-batch-run-{socket.gethostname()}-"

Sizes = Callable[[str], int | None]
"""The size of a file by its name, in bytes; None when it does not exist."""


class Storage(Protocol):
    """The run folder `out`: on a file system, or in an object store. Names are relative to it."""

    shown: str  # its path or URL, for messages
    is_remote: bool

    def lock(self, shard: Shard | None = None) -> RunLock: ...

    def live_locks(self) -> list[str]:
        """Return the names of the locks of the runs that work in it now."""
        ...

    def open_segment(self, segment: Path) -> SegmentWriter | PartWriter: ...

    def open_clips(self, segment: Path) -> ClipSink: ...

    def refresh(self, folders: str = "") -> None:
        """Bring what others have written of the journal into `out`; of folders that begin with `folders`.

        Without `folders`, run.json too.
        """
        ...

    def publish(self, path: Path, *, keep: bool = True) -> None:
        """Make a file durable that is complete at its path in `out`; of a working copy it may go without `keep`."""
        ...

    def read(self, name: str) -> bytes:
        """Return a file. Raises FileNotFoundError."""
        ...

    def remove(self, names: Iterable[str]) -> None: ...

    def sizes(self, expected: int = 1, *, all_files: bool = False) -> Sizes:
        """Return what tells the sizes of clips and their codes, about `expected` in number, or of all files."""
        ...

    def visible(self) -> list[str]:
        """Return the names of what is in the top folder (remote: of all files in it), without hidden ones and locks."""
        ...

    def clips(self) -> Iterator[str]:
        """Yield the names of the files in the folders of clips, sorted."""
        ...

    def quarantined(self) -> list[str]:
        """Return the names of the kept audio of failed attempts."""
        ...


class LocalStorage:
    """A folder of a local or network file system."""

    is_remote = False

    def __init__(self, out: Path) -> None:
        self._out = out
        self.shown = str(out)

    def lock(self, shard: Shard | None = None) -> RunLock:
        return RunLock(self._out, shard)

    def live_locks(self) -> list[str]:
        return [path.name for path in live_locks(self._out)]

    def open_segment(self, segment: Path) -> SegmentWriter:
        return SegmentWriter(segment)

    def open_clips(self, segment: Path) -> LocalClipSink:
        return LocalClipSink(self._out, segment.parent / "tmp" / segment.stem)

    def refresh(self, folders: str = "") -> None:
        """Others write into the same folder."""

    def publish(self, path: Path, *, keep: bool = True) -> None:
        """It was synced before it got its name."""

    def read(self, name: str) -> bytes:
        return (self._out / name).read_bytes()

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            (self._out / name).unlink(missing_ok=True)

    def sizes(self, expected: int = 1, *, all_files: bool = False) -> Sizes:
        return self._size

    def visible(self) -> list[str]:
        return sorted(path.name for path in self._out.iterdir() if not path.name.startswith(_HIDDEN))

    def _size(self, name: str) -> int | None:
        try:
            return (self._out / name).stat().st_size
        except FileNotFoundError:
            return None

    def clips(self) -> Iterator[str]:
        folders = (path for path in self._out.iterdir() if path.is_dir() and re.fullmatch(r"[0-9a-f]{2}", path.name))
        for folder in sorted(folders):
            yield from sorted(f"{folder.name}/{file.name}" for file in folder.iterdir())

    def quarantined(self) -> list[str]:
        return [path.relative_to(self._out).as_posix() for path in self._out.glob("quarantine/[0-9a-f][0-9a-f]/*.wav")]


class ObjectStorage:
    """The objects whose names begin with a URL, and `out`, the working copy of them."""

    is_remote = True

    def __init__(self, out: Path, url: str) -> None:
        self._out, self.shown = out, url
        self._store = ObjectStore(url)

    def lock(self, shard: Shard | None = None) -> RunLock:
        return ObjectLock(self._store, self._out, shard)

    def live_locks(self) -> list[str]:
        return [path.name for path in ObjectLock(self._store, self._out).live()]

    def open_segment(self, segment: Path) -> PartWriter:
        return PartWriter(segment, self._create)

    def open_clips(self, segment: Path) -> StoredClipSink:
        return StoredClipSink(self._store)

    def refresh(self, folders: str = "") -> None:
        names = self._store.find("journal")
        mine = [name for name in names if name.startswith(f"journal/{folders}") and name.endswith(".jsonl")]
        self._store.map(self._download, [name for name in mine if not (self._out / name).exists()])
        if not folders:
            self.download("run.json")

    def download(self, *names: str) -> None:
        """Bring files into the working copy, as far as they exist."""
        for name in names:
            with suppress(FileNotFoundError):
                self._download(name)

    def publish(self, path: Path, *, keep: bool = True) -> None:
        self._store.upload(path.relative_to(self._out).as_posix(), path)
        if not keep:
            path.unlink()

    def read(self, name: str) -> bytes:
        return self._store.read(name)

    def remove(self, names: Iterable[str]) -> None:
        names = list(names)
        for name in names:
            (self._out / name).unlink(missing_ok=True)
        self._store.map(self._store.remove, names)

    def sizes(self, expected: int = 1, *, all_files: bool = False) -> Sizes:
        """The store is listed once, now: asking it for each clip would take a request each."""
        keys, sizes = array("Q"), array("Q")
        for found in self._listings(expected, all_files):
            keys.extend(key_of(name) for name in found)
            sizes.extend(found.values())
        unsorted = np.frombuffer(keys, np.uint64) if keys else np.zeros(0, np.uint64)
        order = unsorted.argsort()
        known = unsorted[order]

        def size(name: str) -> int | None:
            place = int(known.searchsorted(key := np.uint64(key_of(name))))
            return sizes[order[place]] if place < len(known) and known[place] == key else None

        return size

    def clips(self) -> Iterator[str]:
        for found in self._listings(_MANY_CLIPS):
            yield from sorted(found)

    def quarantined(self) -> list[str]:
        return [name for name in self._store.find("quarantine") if name.endswith(".wav")]

    def visible(self) -> list[str]:
        return sorted(name for name in self._store.find() if not name.startswith(_HIDDEN))

    def _listings(self, expected: int, all_files: bool = False) -> Iterator[dict[str, int]]:
        if not expected:
            return
        folders = [f"{number:02x}" for number in range(256)] if expected >= _MANY_CLIPS else [""]
        with ThreadPoolExecutor(THREADS, "object-store") as threads:
            for found in threads.map(self._store.find, folders):
                yield {name: facts.num_bytes for name, facts in found.items() if all_files or _CLIP.fullmatch(name)}

    def _create(self, part: Path, content: bytes) -> None:
        try:
            self._store.write(part.relative_to(self._out).as_posix(), content, create=True)
        except FileExistsError:
            raise StoreError(f"Another run writes {part.name} in {self.shown} too; this run stops.") from None

    def _download(self, name: str) -> None:
        self._store.download(name, self._out / name)


def storage_of(out: Path) -> Storage:
    """Return where the run folder `out` is kept."""
    try:
        url = (out / MARKER).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return LocalStorage(out)
    return _object_storage(out, url)


@lru_cache(maxsize=4)
def _object_storage(out: Path, url: str) -> ObjectStorage:
    return ObjectStorage(out, url)


def url_of(out: Path) -> str | None:
    """Return the URL that a run folder is given as, which a Path holds as "s3:/bucket/run"; None for a local folder.

    Raises UsageError when it holds credentials, or names a store of another kind.
    """
    text = str(out)
    if (match := _URL.match(text)) is not None:
        return check_url(f"{match[1]}://{text[match.end() :]}")
    if re.match(r"[a-z][a-z0-9+.-]+:/", text) and not out.parent.exists():
        scheme = text.partition(":")[0]
        raise UsageError(f"{scheme}:// cannot hold a run folder: use a local path or one of {', '.join(WRITABLE)}.")
    return None


@contextmanager
def working_folder(out: Path, *, journal: bool = True, tables: bool = False) -> Iterator[Path]:
    """Yield `out`, or for a URL a working copy of it, which is removed at the end.

    It has the folder's run.json, its `journal`, and the `tables` that a run ends with.

    Errors for the user name the URL, not the working copy. Raises UsageError and StoreError.
    """
    url = url_of(out)
    if url is None:
        yield out
        return
    with temporary_copy(url) as folder:
        storage = _object_storage(folder, url)
        try:
            if journal:
                storage.refresh()
            else:
                storage.download("run.json")
            if tables:
                storage.download(MANIFEST, FAILURES)
            yield folder
        except TTSBatchError as error:
            error.args = tuple(str(argument).replace(str(folder), url) for argument in error.args)
            raise
        finally:
            for log in folder.glob("journal/*/stderr.log"):
                with suppress(StoreError):
                    if log.stat().st_size:
                        storage.publish(log)


@contextmanager
def temporary_copy(url: str) -> Iterator[Path]:
    """Yield a working copy of what a URL names, still empty; it is removed at the end."""
    _sweep()
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        (folder / MARKER).write_text(url)
        yield folder


def shown(out: Path) -> str:
    """Return a run folder as the user gave it: the URL, or the path."""
    return url_of(out) or str(out)


def _sweep() -> None:
    """Remove the working copies that killed processes of this machine have left."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        pid = left.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and int(pid) != os.getpid() and not Path("/proc", pid).exists():
            shutil.rmtree(left, ignore_errors=True)
