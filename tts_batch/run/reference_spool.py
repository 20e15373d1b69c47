"""Reference recordings on their way to workers: files as they are; bytes and arrays written once, by content key."""

from __future__ import annotations

import shutil
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Literal

import numpy as np

from tts_batch.ipc.messages import ReferenceFile
from tts_batch.records import RefAudio

MAX_SPOOLED = 256


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

    def pin(self, key: str, reference: RefAudio, text: str | None) -> ReferenceFile:
        """Return where a worker reads `reference`; what was written for it stays until `release`."""
        if reference.path is not None:
            return ReferenceFile(key, reference.path, "path", reference.label, text)
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
        kind: Literal["data", "array"] = "data" if reference.data is not None else "array"
        return ReferenceFile(key, str(file), kind, reference.label, text, reference.sampling_rate_hz)

    def release(self, file: ReferenceFile | None) -> None:
        """A row has ended that needed what `pin` returned; None: it had no reference."""
        if file is None or file.kind == "path":
            return
        self._users[file.key] -= 1
        if not self._users[file.key]:
            del self._users[file.key]
            self._idle[file.key] = None
        while self._idle and len(self._users) + len(self._idle) > MAX_SPOOLED:
            self._file(self._idle.popitem(last=False)[0]).unlink(missing_ok=True)

    def remove(self) -> None:
        """The run is over: nobody needs the files."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _file(self, key: str) -> Path:
        return self._folder / key.replace(":", "-")
