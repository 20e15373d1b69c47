"""The folder that an export writes: for one export only, resumable, with every file complete or absent."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import soundfile

from tts_batch.errors import UsageError
from tts_batch.export.clips import FinishedClip, map_ahead
from tts_batch.store.clips import encode_wav
from tts_batch.store.journal import sync_folder
from tts_batch.store.storage import storage_of

STATE = ".tts-batch-export.json"
"""Describes the export in a folder. Hidden, so that no loader reads it as data."""

_TEMPORARY = re.compile(r"(?<![^/])\.([^/]*)\.tmp\Z")  # of an incomplete file


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The options of an export beside its format; each format supports some of them."""

    shard_mb: float = 500  # of audio in a shard
    hard_link: bool = False  # instead of copies
    decode: bool = False  # clips that the format does not take are written as 16-bit wav
    ref_audio: Path | None = None  # the reference of all rows; None: one of the clips


class Target:
    """The folder of an export. The caller holds its lock.

    A file gets its final name when it is complete, so that an interrupted export keeps what it has written.
    """

    def __init__(
        self, folder: Path, facts: Mapping[str, Any], options: ExportOptions, clip_suffixes: Collection[str]
    ) -> None:
        """Open `folder`, empty or with the beginning of the export that `facts` describe.

        Clips of one of `clip_suffixes` are copied or linked unchanged; any other becomes a 16-bit wav file. Raises
        UsageError when the folder holds anything else.
        """
        self.folder, self.options, self._clip_suffixes = folder, options, clip_suffixes
        self._facts = dict(facts)
        self._made: set[Path] = set()  # folders known to exist
        self._storage = storage_of(folder)
        before = read_state(folder)
        if before is None:
            _reject_foreign_files(folder, iter(self._storage.visible()))
        self._size_before = self._storage.sizes(all_files=True)
        self._written: dict[str, int] = {}  # size of each file that `write` has written
        if options.hard_link and self._storage.is_remote:
            raise UsageError("--hard-link needs a folder on the file system of the run: leave it out.")
        differing = [name for name, value in self._facts.items() if before and before.get(name) != value]
        if differing:
            raise UsageError(
                f"{folder} holds another export: its {' and '.join(differing)} differ{'s' * (len(differing) == 1)}. "
                "Name another folder, or replace it with --overwrite."
            )
        self._write_state(complete=False)

    @property
    def title(self) -> str:
        """The name of the folder, or the last part of its URL."""
        return Path(self._storage.shown).name if self._storage.is_remote else self.folder.resolve().name

    def has(self, name: str) -> bool:
        """Say whether a file exists, and so is complete."""
        return self.size(name) is not None

    def size(self, name: str) -> int | None:
        """Return the size of a file in bytes; None when it does not exist."""
        return self._written.get(name) or self._size_before(name)

    @contextmanager
    def write(self, name: str) -> Iterator[BinaryIO]:
        """Open a file for writing; at the end it is durable under its name, after an exception it does not exist."""
        path = self.folder / name
        self._make_folder(path.parent)
        with _atomic(path) as temporary, temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            self._written[name] = file.tell()
        sync_folder(path.parent)
        self._storage.publish(path, keep=False)

    def put_all(
        self, clips: Iterable[FinishedClip], stem_of: Callable[[FinishedClip], str]
    ) -> Iterator[tuple[FinishedClip, str]]:
        """`put` every clip, in order, and yield it with its name; `stem_of` gives the name without a suffix."""
        return map_ahead(lambda clip: self.put(clip, stem_of(clip)), clips)

    def put(self, clip: FinishedClip, stem: str) -> str:
        """Write a clip, unless it exists, and return its name: `stem` and a suffix. Durable after `finish`."""
        unchanged = clip.suffix in self._clip_suffixes
        name = stem + (clip.suffix if unchanged else ".wav")
        path = self.folder / name
        size = self._size_before(name)
        if size is not None and (size == clip.num_bytes or not unchanged):
            return name
        self._make_folder(path.parent)
        if unchanged and self.options.hard_link:
            _link(clip.path, path)
            return name
        content = clip.read() if unchanged else _as_wav(clip)
        with _atomic(path) as temporary:
            temporary.write_bytes(content)
        self._storage.publish(path, keep=False)
        return name

    def finish(self, **figures: Any) -> None:
        """Mark the export as complete, once it is on the disk."""
        os.sync()  # once, instead of for each of a million small files
        self._write_state(complete=True, **figures)

    def _write_state(self, **more: Any) -> None:
        with self.write(STATE) as file:
            file.write(json.dumps({**self._facts, **more}, indent=1).encode())

    def _make_folder(self, folder: Path) -> None:
        if folder not in self._made:
            for inner in (folder, *folder.parents)[: len(folder.relative_to(self.folder).parts)]:
                if inner.is_symlink():
                    raise UsageError(f"{inner} is a link to another folder: an export writes into its own. Remove it.")
            folder.mkdir(parents=True, exist_ok=True)
            self._made.add(folder)


def read_state(folder: Path) -> dict[str, Any] | None:
    """Return the description of the export in a folder; None when there is none that can be read."""
    try:
        state = json.loads(storage_of(folder).read(STATE))
    except (FileNotFoundError, ValueError):
        return None
    return state if isinstance(state, dict) else None


def clear(folder: Path, file_pattern: re.Pattern[str]) -> None:
    """Remove an earlier export: the files whose paths match, and the folders around them.

    Raises UsageError, and removes nothing, when the folder holds a file that no export wrote.
    """
    storage = storage_of(folder)
    if storage.is_remote:
        names = storage.visible()
        _reject_foreign_files(folder, (name for name in names if not file_pattern.fullmatch(name)))
        storage.remove(names)
        storage.remove([STATE])
        return
    _reject_foreign_files(folder, (name for name, path in _walk(folder) if not _is_ours(name, path, file_pattern)))
    for _, path in _walk(folder):
        path.rmdir() if _is_folder(path) else path.unlink()
    for temporary in folder.glob(".*.tmp"):
        if _is_ours(temporary.name, temporary, file_pattern):
            temporary.unlink()
    (folder / STATE).unlink()  # last, so that the same command can continue this too


def _is_ours(name: str, path: Path, file_pattern: re.Pattern[str]) -> bool:
    return _is_folder(path) or (
        not path.is_symlink() and file_pattern.fullmatch(_TEMPORARY.sub(r"\1", name)) is not None
    )


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield (path in the folder, path) of all that is not hidden: links as such, folders after their contents."""
    for top in _visible(folder):
        if _is_folder(top):
            for parent, folders, files in os.walk(top, topdown=False):
                links = (name for name in folders if Path(parent, name).is_symlink())
                for path in (*(Path(parent, name) for name in (*files, *links)), Path(parent)):
                    yield path.relative_to(folder).as_posix(), path
        else:
            yield top.name, top


def _reject_foreign_files(folder: Path, foreign: Iterator[str]) -> None:
    if (first := next(foreign, None)) is not None:
        raise UsageError(f"{folder} holds files that no export wrote ({first}, …). Name a new or an empty folder.")


def _visible(folder: Path) -> list[Path]:
    """Return what is in the folder but hidden files, such as .git, and the lock."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith((".", "run.lock")))


@contextmanager
def _atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path, which is renamed to `path` at the end, and removed after an exception."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # of an export that was killed, or a link to a file elsewhere
    try:
        yield temporary
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _as_wav(clip: FinishedClip) -> bytes:
    if clip.suffix != ".flac":
        return encode_wav(*clip.decode("float32"))
    buffer = io.BytesIO()  # keeps the samples exactly
    soundfile.write(buffer, *clip.decode("int16"), format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def _link(source: Path, path: Path) -> None:
    path.unlink(missing_ok=True)
    try:
        os.link(source, path)
    except OSError as error:
        raise UsageError(
            f"--hard-link cannot link {source} to {path}: {error.strerror}. Run without it to copy."
        ) from None
