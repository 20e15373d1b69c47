"""References loaded side by side: reading a clip takes the host longer than encoding it takes the device."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from tts_batch.engine.request import Reference

MAX_THREADS = 4


class LoadAhead:
    """Clips being loaded, by key. Threads live as long as there is something to load, and end with the process."""

    def __init__(self) -> None:
        self._clips: dict[str, Future[NDArray[np.float32]]] = {}
        self._waiting: deque[tuple[Reference, Future[NDArray[np.float32]]]] = deque()
        self._threads: list[threading.Thread] = []

    def start(self, references: Iterable[Reference]) -> None:
        """Load these, in this order, and drop what was loaded of others. A single reference is left to `take`."""
        wanted = {reference.key: reference for reference in references}
        for key in self._clips.keys() - wanted.keys():
            self._clips.pop(key).cancel()
        new = [reference for key, reference in wanted.items() if key not in self._clips]
        if not new or len(wanted) < 2:
            return
        for reference in new:
            self._clips[reference.key] = clip = Future[NDArray[np.float32]]()
            self._waiting.append((reference, clip))
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        for _ in range(min(MAX_THREADS - len(self._threads), len(new))):
            thread = threading.Thread(target=self._load, name="tts-batch-load", daemon=True)
            thread.start()
            self._threads.append(thread)

    def has(self, key: str) -> bool:
        """Whether a clip is loaded and waits for `take`."""
        clip = self._clips.get(key)
        return clip is not None and clip.done() and not clip.cancelled() and clip.exception() is None

    def take(self, reference: Reference) -> NDArray[np.float32]:
        """The clip, loaded in this thread unless another has begun with it. Raises what its `load` raises."""
        clip = self._clips.pop(reference.key, None)
        # The caller's watchdog is the deadline of this wait, as it is of a load in this thread.
        return reference.load() if clip is None or clip.cancel() else clip.result()

    def _load(self) -> None:
        while self._waiting:
            try:
                reference, clip = self._waiting.popleft()
            except IndexError:  # another thread took the last one
                return
            if not clip.set_running_or_notify_cancel():
                continue
            try:
                clip.set_result(reference.load())
            except BaseException as error:
                clip.set_exception(error)
