"""Reference recordings as workers and clip processes read them: for the engine, and to find one that leaked."""

from __future__ import annotations

from collections import OrderedDict
from io import BytesIO

import numpy as np
from numpy.typing import NDArray

from tts_batch.dataset.audio import load_reference
from tts_batch.engine.request import SAMPLE_RATE_HZ, Reference
from tts_batch.errors import RowError
from tts_batch.ipc.messages import ActiveRow, CheckLimits
from tts_batch.object_store import StoreError, read_anywhere
from tts_batch.records import RefAudio
from tts_batch.worker.examine import Tail

MAX_TAILS = 4_096  # of 32 KB: as many rows as an engine may have in hand, each with a voice of its own


def load_spooled(path: str, sampling_rate_hz: int | None, label: str) -> NDArray[np.float32]:
    """Read a reference that the parent has written into a file: float32 mono [samples] at 24 kHz.

    `sampling_rate_hz`: of a NumPy array; None for the bytes of an audio file. Raises RowError with its reason.
    """
    try:
        content = read_anywhere(path)
    except (OSError, StoreError) as error:
        message = f"ref_audio {label} cannot be read from {path}: {getattr(error, 'strerror', None) or error}."
        raise RowError("ref_unreadable", message, transient=True) from error
    if sampling_rate_hz is None:
        return load_reference(RefAudio(data=content, label=label))
    array = np.load(BytesIO(content), allow_pickle=False)
    return load_reference(RefAudio(array=array, sampling_rate_hz=sampling_rate_hz, label=label))


class Tails:
    """The ends of the references used last, by key: each recording is read once for many clips."""

    def __init__(self) -> None:
        self._tails: OrderedDict[str, Tail | None] = OrderedDict()  # least recently used first

    def of(self, row: ActiveRow, limits: CheckLimits) -> Tail | None:
        """Return the tail that a row's clip is searched for; None where no reference may have leaked, or be read."""
        reference = row.request.reference
        has_audio = any(result.audio is not None for result in row.results)
        if reference is None or not has_audio or row.request.x_vector_only or limits.ref_correlation is None:
            return None
        return self.find(reference)

    def find(self, reference: Reference) -> Tail | None:
        """Return the tail of a reference; None when it cannot be read."""
        key = reference.key
        if key in self._tails:
            self._tails.move_to_end(key)
            return self._tails[key]
        try:
            tail = Tail(reference.load(), SAMPLE_RATE_HZ)
        except Exception:  # the engine reports it for every row that needs it
            tail = None
        self._tails[key] = tail
        if len(self._tails) > MAX_TAILS:
            self._tails.popitem(last=False)
        return tail
