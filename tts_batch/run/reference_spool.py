"""Reference recordings on their way to workers: files as they are; bytes and arrays written once, by content key."""

from __future__ import annotations

import shutil
from collections import Counter, OrderedDict
from functools import partial
from pathlib import Path

import numpy as np

from tts_batch.dataset.audio import load_reference
from tts_batch.engine.request import Reference
from tts_batch.records import RefAudio
from tts_batch.store.storage import Storage
from tts_batch.worker.references import load_spooled

MAX_SPOOLED = 256


class ReferenceSpool:
    """Files for references that came as bytes or arrays. The parent writes each once, for all workers.

    A file stays while a row that needs it is under way, and then until 256 newer ones have come.
    """

    def __init__(self, folder: Path, elsewhere: Storage | None = None) -> None:
        """`elsewhere`: workers are on other machines, and read the files where the run folder is."""
        self._folder = folder
        self._url = f"{elsewhere.shown}/journal/{folder.name}" if elsewhere and elsewhere.is_remote else None
        self._storage = elsewhere
        self.remove()  # files of a run that was killed: if the machine went with it, they may be empty
        folder.mkdir(parents=True, exist_ok=True)
        self._keys: dict[str, str] = {}  # row id → key, of rows under way that need a file
        self._users: Counter[str] = Counter()  # key → such rows
        self._idle: OrderedDict[str, None] = OrderedDict()  # keys without such a row; least recently used first

    def pin(self, row_id: str, key: str, recording: RefAudio, text: str | None) -> Reference:
        """Return a row's reference as a worker can load it; what was written for it stays until `release`."""
        if recording.path is not None:
            return Reference(key, partial(load_reference, recording), text)
        file = self._file(key)
        if not file.exists():
            temporary = file.with_suffix(".tmp")
            if recording.data is not None:
                temporary.write_bytes(recording.data)
            else:
                with temporary.open("wb") as target:
                    np.save(target, np.asarray(recording.array), allow_pickle=False)
            temporary.rename(file)
            if self._storage is not None:
                self._storage.publish(file)
        self._keys[row_id] = key
        self._users[key] += 1
        self._idle.pop(key, None)
        rate_hz = None if recording.data is not None else recording.sampling_rate_hz
        return Reference(
            key,
            partial(load_spooled, f"{self._url}/{file.name}" if self._url else str(file), rate_hz, recording.label),
            text,
        )

    def release(self, row_id: str) -> None:
        """A row has ended, with or without a reference."""
        key = self._keys.pop(row_id, None)
        if key is None:
            return
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
