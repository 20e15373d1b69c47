"""Reference audio on its way to a worker: a path as it is; bytes and arrays once, under their content's key."""

from __future__ import annotations

import shutil
import threading
from collections import Counter, OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts_batch.engine.request import SAMPLE_RATE_HZ, Reference
from tts_batch.errors import RowError
from tts_batch.records import RefAudio
from tts_batch.worker.sound import Tail

MAX_SPOOLED = 256
MAX_TAILS = 4_096  # of 32 KB: as many rows as an engine may have in hand, each with a voice of its own
TAIL_THREADS = 4
TAIL_S = 60.0  # how long a clip waits for its tail


class ReferenceSpool:
    """Files for references that came as bytes or arrays. The parent writes each once, for all workers.

    A file stays while a row that needs it is under way, and then until 256 newer ones have come.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.remove()  # files of a run that was killed: if the machine went with it, they may be empty
        folder.mkdir(parents=True, exist_ok=True)
        self._users: Counter[str] = Counter()  # key → rows under way
        self._idle: OrderedDict[str, None] = OrderedDict()  # keys without such a row; least recently used first

    def pin(self, key: str, reference: RefAudio, text: str | None) -> dict[str, Any]:
        """Return the message part that stands for `reference`; its file stays until `release`."""
        message: dict[str, Any] = {"key": key, "text": text, "label": reference.label}
        if reference.path is not None:
            return message | {"kind": "path", "file": reference.path}
        file = self._file(key)
        if not file.exists():
            temporary = file.with_suffix(".tmp")
            if reference.data is not None:
                temporary.write_bytes(reference.data)
            else:
                with temporary.open("wb") as target:
                    np.save(target, np.asarray(reference.array), allow_pickle=False)
            temporary.rename(file)
        self._users[key] += 1
        self._idle.pop(key, None)
        kind = "data" if reference.data is not None else "array"
        return message | {"kind": kind, "file": str(file), "sampling_rate_hz": reference.sampling_rate_hz}

    def release(self, message: dict[str, Any] | None) -> None:
        """A row has ended that needed what `pin` returned; None: it had no reference."""
        if message is None or message["kind"] == "path":
            return
        key = message["key"]
        self._users[key] -= 1
        if not self._users[key]:
            del self._users[key]
            self._idle[key] = None
        while self._idle and len(self._users) + len(self._idle) > MAX_SPOOLED:
            self._file(self._idle.popitem(last=False)[0]).unlink(missing_ok=True)

    def remove(self) -> None:
        """The run is over: nobody needs the files."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _file(self, key: str) -> Path:
        return self._folder / key.replace(":", "-")


def reference_from(message: dict[str, Any] | None) -> Reference | None:
    """Return the engine's view of a pinned reference; its audio is read when the engine asks for it."""
    if message is None:
        return None
    return Reference(key=message["key"], load=partial(_load, message), text=message["text"])


class Tails:
    """The ends of the references in use, to recognise them in clips.

    They are read ahead, on threads: a clip is checked in a fraction of the time that it takes to read a recording.
    """

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._lock = threading.Lock()
        self._tails: OrderedDict[str, Future[Tail | None]] = OrderedDict()  # least recently used first
        self._readers = ThreadPoolExecutor(TAIL_THREADS, "tail")

    def read_ahead(self, reference: Reference | None) -> None:
        """A clip with `reference` will be there soon."""
        if reference is not None and self._wanted:
            self._find(reference)

    def of(self, reference: Reference | None) -> Tail | None:
        """Return the tail of `reference`; None when there is no reference, or none that can be read now."""
        if reference is None or not self._wanted:
            return None
        try:
            return self._find(reference).result(TAIL_S)
        except TimeoutError:
            return None

    def _find(self, reference: Reference) -> Future[Tail | None]:
        with self._lock:
            found = self._tails.get(reference.key)
            if found is None or (found.done() and found.result() is None):  # what was not there may be there now
                found = self._tails[reference.key] = self._readers.submit(_tail, reference)
                if len(self._tails) > MAX_TAILS:
                    self._tails.popitem(last=False)
            self._tails.move_to_end(reference.key)
            return found


def _tail(reference: Reference) -> Tail | None:
    try:
        return Tail(reference.load(), SAMPLE_RATE_HZ)
    except (RowError, OSError):
        return None  # the engine says so of every row that needs it


def _load(message: dict[str, Any]) -> NDArray[np.float32]:
    from tts_batch.dataset.audio import load_reference

    file, label = message["file"], message["label"]
    if message["kind"] == "path":
        return load_reference(RefAudio(path=file, label=label))
    try:
        spooled = Path(file).read_bytes()
    except OSError as error:
        told = f"ref_audio {label} cannot be read from {file}: {error.strerror}."
        raise RowError("ref_unreadable", told, passing=True) from error
    if message["kind"] == "data":
        return load_reference(RefAudio(data=spooled, label=label))
    array = np.load(BytesIO(spooled), allow_pickle=False)
    return load_reference(RefAudio(array=array, sampling_rate_hz=message["sampling_rate_hz"], label=label))
