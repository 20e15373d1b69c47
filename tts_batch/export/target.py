"""The folder that an export fills: opened once and for one export, every file whole or not there, resumable."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import soundfile

from tts_batch.errors import UsageError
from tts_batch.export.clips import FinishedClip, changed
from tts_batch.run.clips import encode_wav
from tts_batch.run.journal import sync_folder

STATE = ".tts-batch-export.json"
"""Says which export a folder holds. Hidden, so that no loader takes it for data."""


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
        if before is None and (strangers := _visible(folder)):
            raise UsageError(
                f"{folder} holds files that no export wrote ({strangers[0]}, …). Name a new or an empty folder."
            )
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
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
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
        temporary = path.with_name(f".{path.name}.tmp")
        if as_it_is:
            shutil.copyfile(clip.path, temporary)
        else:
            _decode(clip.path, temporary)
        if clip.path.stat().st_size != clip.num_bytes:
            temporary.unlink()
            raise changed(clip.path)
        temporary.rename(path)
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
    """Return what the export in a folder says of itself; None when there is none."""
    try:
        return dict(json.loads((folder / STATE).read_bytes()))
    except FileNotFoundError:
        return None


def clear(folder: Path, owned: tuple[str, ...]) -> None:
    """Remove what an export wrote: everything at the top of `folder` that matches a pattern in `owned`."""
    for pattern in (*owned, ".*.tmp", STATE):
        for path in folder.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _visible(folder: Path) -> list[str]:
    """What lies in the folder beside hidden files (a .git may be there) and the lock."""
    names = sorted(path.name for path in folder.iterdir())
    return [name for name in names if not name.startswith(".") and not name.startswith("run.lock")]


def _decode(clip: Path, wav: Path) -> None:
    if soundfile.info(clip).subtype == "PCM_16":  # flac: the very samples
        samples, rate_hz = soundfile.read(clip, dtype="int16")
        soundfile.write(wav, samples, rate_hz, format="WAV", subtype="PCM_16")
    else:
        wav.write_bytes(encode_wav(*soundfile.read(clip, dtype="float32")))


def _link(source: Path, path: Path) -> None:
    path.unlink(missing_ok=True)
    try:
        os.link(source, path)
    except OSError as error:
        raise UsageError(f"--hard-link cannot link {source} to {path}: {error.strerror}. Leave it out.") from None
