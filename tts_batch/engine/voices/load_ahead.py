"""References loaded side by side: reading a clip takes the host longer than encoding it takes the device."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from tts_batch.engine.request import Reference

MAX_THREADS = 8


class LoadAhead:
    """Clips being loaded, by key. Threads live as long as there is something to load, and end with the process."""

    def __init__(self) -> None:
        self._clips: dict[str, Future[NDArray[np.float32]]] = {}

    def start(self, references: Iterable[Reference]) -> None:
        """Begin to load references; a key that is being loaded is skipped. A single reference is left to `take`."""
        new = {reference.key: reference for reference in references if reference.key not in self._clips}
        if len(new) < 2:
            return
        started = {key: Future[NDArray[np.float32]]() for key in new}
        self._clips |= started
        waiting = deque((reference, started[key]) for key, reference in new.items())
        for _ in range(min(MAX_THREADS, len(waiting))):
            threading.Thread(target=_load, args=(waiting,), name="tts-batch-load", daemon=True).start()

    def take(self, reference: Reference) -> NDArray[np.float32]:
        """The clip, loaded in this thread unless loading was started. Raises what its `load` raises."""
        clip = self._clips.pop(reference.key, None)
        # The caller's watchdog is the deadline of this wait, as it is of a load in this thread.
        return reference.load() if clip is None else clip.result()

    def forget(self) -> None:
        """Drop the clips that were not taken."""
        self._clips.clear()


def _load(waiting: deque[tuple[Reference, Future[NDArray[np.float32]]]]) -> None:
    while waiting:
        try:
            reference, clip = waiting.popleft()
        except IndexError:  # another thread took the last one
            return
        try:
            clip.set_result(reference.load())
        except BaseException as error:
            clip.set_exception(error)
