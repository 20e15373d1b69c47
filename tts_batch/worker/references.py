"""Reference recordings as workers and clip processes read them: for the engine, and to find one that leaked."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tts_batch.engine.request import SAMPLE_RATE_HZ, Reference
from tts_batch.errors import RowError
from tts_batch.ipc.messages import CheckLimits, ClipTask, ReferenceFile
from tts_batch.records import RefAudio
from tts_batch.worker.sound import Tail

MAX_TAILS = 4_096  # of 32 KB: as many rows as an engine may have in hand, each with a voice of its own


def engine_reference(file: ReferenceFile | None) -> Reference | None:
    """Return the engine's view of a reference; its audio is read when the engine asks for it."""
    return None if file is None else Reference(key=file.key, load=partial(load_file, file), text=file.text)


def load_file(file: ReferenceFile) -> NDArray[np.float32]:
    """Read a reference: float32 mono [samples] at 24 kHz. Raises RowError with its reason."""
    from tts_batch.dataset.audio import load_reference

    if file.kind == "path":
        return load_reference(RefAudio(path=file.path, label=file.label))
    try:
        content = Path(file.path).read_bytes()
    except OSError as error:
        message = f"ref_audio {file.label} cannot be read from {file.path}: {error.strerror}."
        raise RowError("ref_unreadable", message, transient=True) from error
    if file.kind == "data":
        return load_reference(RefAudio(data=content, label=file.label))
    array = np.load(BytesIO(content), allow_pickle=False)
    return load_reference(RefAudio(array=array, sampling_rate_hz=file.sampling_rate_hz, label=file.label))


class Tails:
    """The ends of the references used last, by key: each recording is read once for many clips."""

    def __init__(self) -> None:
        self._tails: OrderedDict[str, Tail | None] = OrderedDict()  # least recently used first

    def wanted_by(
        self, task: ClipTask, limits: CheckLimits, key: str | None, load: Callable[[], NDArray[np.float32]]
    ) -> Tail | None:
        """Return the tail that a clip is searched for; None without audio, or where no reference may have leaked."""
        has_audio = any(piece.result.audio is not None for piece in task.results)
        if key is None or not has_audio or task.row.x_vector_only or limits.ref_correlation is None:
            return None
        return self.find(key, load)

    def find(self, key: str, load: Callable[[], NDArray[np.float32]]) -> Tail | None:
        """Return the tail of a reference; None when it cannot be read."""
        if key in self._tails:
            self._tails.move_to_end(key)
            return self._tails[key]
        try:
            tail = Tail(load(), SAMPLE_RATE_HZ)
        except Exception:  # the engine reports it for every row that needs it
            tail = None
        self._tails[key] = tail
        if len(self._tails) > MAX_TAILS:
            self._tails.popitem(last=False)
        return tail
