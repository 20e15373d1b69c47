"""The folder that an export fills: opened once and for one export, every file whole or not there, resumable."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import soundfile

from tts_batch.errors import UsageError
from tts_batch.export.clips import FinishedClip, changed
from tts_batch.store.clips import encode_wav
from tts_batch.store.journal import sync_folder

STATE = ".tts-batch-export.json"
"""Says which export a folder holds. Hidden, so that no loader takes it for data."""

_TEMPORARY = re.compile(r"(?<![^/])\.([^/]*)\.tmp\Z")  # a file that is not whole


class Target:
    """A folder under an export. The caller holds its lock.

    A file gets its final name when it is whole, so that what an interrupted export left under one is kept.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Open `folder` for the export that `facts` describe: empty, or with the beginning of that very export.

        Raises UsageError when it holds anything else.
        """
        self.folder = folder
        self._facts = dict(facts)
        self._made: set[Path] = set()  # folders known to exist
        before = read_state(folder)
        if before is None:
            _refuse_strangers(folder, iter(_visible(folder)))
        differing = [name for name, value in self._facts.items() if before and before.get(name) != value]
        if differing:
            raise UsageError(
                f"{folder} holds another export: its {' and '.join(differing)} differ{'s' * (len(differing) == 1)}. "
                "Name another folder, or replace it with --overwrite."
            )
        self._write_state(complete=False)

    def has(self, name: str) -> bool:
        """Say whether a file is there, and so is whole."""
        return (self.folder / name).exists()

    @contextmanager
    def write(self, name: str) -> Iterator[BinaryIO]:
        """Open a file for writing; it is durable under its name at the end, or not there after an exception."""
        path = self.folder / name
        self._make_folder(path.parent)
        with _whole(path) as temporary, temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)

    def put(self, clip: FinishedClip, stem: str, takes: frozenset[str], *, hard_link: bool) -> str:
        """Put a clip there, unless it is, and return its name: `stem` and a suffix. Durable after `finish`.

        Of a suffix in `takes` it is copied or linked as it is; any other becomes a wav file of 16 bits.
        """
        as_it_is = clip.suffix in takes
        name = stem + (clip.suffix if as_it_is else ".wav")
        path = self.folder / name
        if path.exists() and (path.stat().st_size == clip.num_bytes or not as_it_is):
            return name
        self._make_folder(path.parent)
        if as_it_is and hard_link:
            _link(clip.path, path)
            return name
        try:
            with _whole(path) as temporary:
                if as_it_is:
                    shutil.copyfile(clip.path, temporary)
                else:
                    temporary.write_bytes(_as_wav(clip))
                if clip.path.stat().st_size != clip.num_bytes:
                    raise changed(clip.path)
        except FileNotFoundError:
            raise changed(clip.path) from None
        return name

    def finish(self, **figures: Any) -> None:
        """Say that everything is there, once it is on the disk."""
        os.sync()  # once, not for each of a million small files
        self._write_state(complete=True, **figures)

    def _write_state(self, **more: Any) -> None:
        with self.write(STATE) as file:
            file.write(json.dumps({**self._facts, **more}, indent=1).encode())

    def _make_folder(self, folder: Path) -> None:
        if folder not in self._made:
            folder.mkdir(parents=True, exist_ok=True)
            self._made.add(folder)


def read_state(folder: Path) -> dict[str, Any] | None:
    """Return what the export in a folder says of itself; None when there is none, or nothing that can be read."""
    try:
        state = json.loads((folder / STATE).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return state if isinstance(state, dict) else None


def clear(folder: Path, owned: re.Pattern[str]) -> None:
    """Remove an earlier export: the files whose paths match `owned`, and the folders around them.

    Raises UsageError, with everything left as it is, when something is there that no export wrote.
    """
    _refuse_strangers(folder, (name for name, path in _walk(folder) if not _is_ours(name, path, owned)))
    for _, path in _walk(folder):
        path.rmdir() if _is_folder(path) else path.unlink()
    for temporary in folder.glob(".*.tmp"):
        if _is_ours(temporary.name, temporary, owned):
            temporary.unlink()
    (folder / STATE).unlink()  # at last, so that the same command goes on with this too


def _is_ours(name: str, path: Path, owned: re.Pattern[str]) -> bool:
    return _is_folder(path) or (not path.is_symlink() and owned.fullmatch(_TEMPORARY.sub(r"\1", name)) is not None)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield all that is visible with its path in the folder: links as such, folders after what is in them."""
    for name in _visible(folder):
        top = folder / name
        if _is_folder(top):
            for parent, folders, files in os.walk(top, topdown=False):
                inner = [Path(parent, name) for name in files]
                inner += [link for name in folders if (link := Path(parent, name)).is_symlink()]
                for path in (*inner, Path(parent)):
                    yield path.relative_to(folder).as_posix(), path
        else:
            yield name, top


def _refuse_strangers(folder: Path, strangers: Iterator[str]) -> None:
    if (first := next(strangers, None)) is not None:
        raise UsageError(f"{folder} holds files that no export wrote ({first}, …). Name a new or an empty folder.")


def _visible(folder: Path) -> list[str]:
    """What lies in the folder beside hidden files (a .git may be there) and the lock."""
    names = sorted(path.name for path in folder.iterdir())
    return [name for name in names if not name.startswith(".") and not name.startswith("run.lock")]


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Yield where to write what has the name `path` at the end, and is gone after an exception."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _as_wav(clip: FinishedClip) -> bytes:
    if clip.suffix != ".flac":
        return encode_wav(*clip.decode("float32"))
    buffer = io.BytesIO()  # the very samples
    soundfile.write(buffer, *clip.decode("int16"), format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def _link(source: Path, path: Path) -> None:
    path.unlink(missing_ok=True)
    try:
        os.link(source, path)
    except OSError as error:
        raise UsageError(f"--hard-link cannot link {source} to {path}: {error.strerror}. Leave it out.") from None
