"""Results between the engine and the writer: examined on several threads, then taken further by one, in order.

The engine's next result is not kept waiting by the checks of the one before.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from tts_batch.engine.request import SpeechResult
from tts_batch.worker.checks import Examined
from tts_batch.worker.rows import ActivePiece

EXAMINING_THREADS = 4  # some 400 clips a second each, once they have processes for it
MAX_BETWEEN = 64  # clips that wait at most: a slow disk holds the engine back, not the memory up

_Found = tuple[SpeechResult, Examined]


class Examiner:
    """Takes results on one thread, its owner's.

    `examine` runs on any of several threads; `finish` gets what that returned, on one thread and in the order of the
    results. An error in either ends it: `broken` gets it, on that same thread, once all before it have been finished,
    and has to end the process, since nobody takes results from then on.
    """

    def __init__(
        self,
        examine: Callable[[ActivePiece, SpeechResult], _Found],
        finish: Callable[[ActivePiece, SpeechResult, Examined], None],
        broken: Callable[[Exception], None],
    ) -> None:
        self._examine, self._finish, self._broken = examine, finish, broken
        self._queue: queue.Queue[tuple[ActivePiece, Future[_Found]] | None] = queue.Queue(MAX_BETWEEN)
        self.wait_s = 0.0  # how long `put` has held its caller up
        self._examining = ThreadPoolExecutor(EXAMINING_THREADS, "examine")
        self._thread = threading.Thread(target=self._run, name="finish", daemon=True)
        self._thread.start()

    def put(self, piece: ActivePiece, result: SpeechResult) -> None:
        """Give the result of a piece; waits while MAX_BETWEEN are not finished."""
        found = self._examining.submit(self._examine, piece, result)
        started = time.monotonic()
        self._queue.put((piece, found))
        self.wait_s += time.monotonic() - started

    def close(self) -> None:
        """Return when all that was given is finished."""
        self._queue.put(None)
        self._thread.join()
        self._examining.shutdown()

    def _run(self) -> None:
        try:
            while (given := self._queue.get()) is not None:
                piece, found = given
                self._finish(piece, *found.result())
        except Exception as error:
            self._broken(error)
