"""The program that runs an isolated engine, `python -m tts_batch.engine.host CONTROL RESULTS`: two sockets' numbers.

It opens the engine that it is told, serves one `generate` after another, and ends with whoever started it.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import suppress

from tts_batch.engine.child import leave_signals_to_parent
from tts_batch.engine.errors import EngineError
from tts_batch.engine.isolated import AHEAD, FIRST_AHEAD, POLL_S
from tts_batch.engine.registry import open_engine
from tts_batch.engine.request import Engine, SpeechRequest
from tts_batch.ipc.pipe import Pipe

OTHER_END_GONE = 70  # exit status, for whoever looks


class Host:
    """One engine. The main thread opens it and generates, another one listens from the start."""

    _engine: Engine

    def __init__(self, control: Pipe, results: Pipe) -> None:
        self._control, self._results = control, results
        self._calls: queue.SimpleQueue[str] = queue.SimpleQueue()  # "generate" or "close"
        self._changed = threading.Condition()  # for all that follows
        self._queue: deque[SpeechRequest] = deque()  # here, and not yet taken by the engine
        self._num_asked_for = 0  # requests that are to come
        self._num_taken = 0  # by the engine, and not answered
        self._ask_after_s = 0.0  # none was ready just now
        self._handed_over: str | None = None  # the last one that the engine took, which it may not know yet
        self._cancelled: set[str] = set()  # to be cancelled once the engine knows them
        self._no_more = self._closing = False

    def run(self) -> None:
        """Open what is asked for and serve until told to close."""
        _, spec, config = self._control.receive()
        threading.Thread(target=self._listen, name="control", daemon=True).start()
        try:
            self._engine = open_engine(spec, config)
        except Exception as error:
            traceback.print_exc()
            self._results.send(("failed", telling(error)))
            return
        self._results.send(("opened", self._engine.sample_rate, dict(getattr(self._engine, "info", {}))))
        while self._calls.get() == "generate":
            with suppress(BrokenPipeError):  # nobody takes results any more: the other end is closing
                self._generate()
        self._engine.close()

    def _listen(self) -> None:
        try:
            while True:
                kind, *told = self._control.receive()
                with self._changed:
                    if kind == "request":
                        self._queue.append(told[0])
                        self._num_asked_for -= 1
                    elif kind == "nothing":
                        self._num_asked_for -= told[0]
                        self._ask_after_s = time.monotonic() + POLL_S
                    elif kind == "end":
                        self._no_more = True
                    elif kind == "abort":
                        os._exit(OTHER_END_GONE)
                    elif kind in ("generate", "close"):
                        self._closing = kind == "close"
                        self._calls.put(kind)
                    elif kind == "cancel" and told[0] in {self._handed_over, *(r.request_id for r in self._queue)}:
                        self._cancelled.add(told[0])
                    self._changed.notify_all()
                if kind == "cancel":
                    self._engine.cancel(told[0])
        except EOFError:
            pass
        except Exception:
            traceback.print_exc()
        os._exit(OTHER_END_GONE)

    def _generate(self) -> None:
        self._no_more, self._num_asked_for, self._num_taken = False, 0, 0
        results = self._engine.generate(self._requests())
        end: tuple = ("done",)
        try:
            for result in results:
                with self._changed:
                    self._num_taken -= 1
                self._results.send(("result", result))
                if self._closing:
                    return
        except BrokenPipeError:
            raise
        except Exception as error:
            traceback.print_exc()
            end = ("failed", telling(error))
        finally:
            if isinstance(results, Generator):
                results.close()
        self._control.send(("over",))
        self._results.send(end)

    def _requests(self) -> Iterator[SpeechRequest | None]:
        """What the engine pulls, on its own thread. More is asked for only when it does, as if it were not apart.

        An engine that has nothing to do waits a moment for the next, so that it does not spin.
        """
        while not self._closing:
            self._ask()
            with self._changed:
                if not (self._queue or self._no_more or self._num_taken > 0):
                    self._changed.wait(POLL_S)
                request = self._queue.popleft() if self._queue else None
                if request is None and self._no_more:
                    return
                self._handed_over = request and request.request_id
                self._num_taken += request is not None
            yield request
            if request is None:
                continue
            with self._changed:
                self._handed_over = None
                is_cancelled = request.request_id in self._cancelled
                self._cancelled.discard(request.request_id)
            if is_cancelled:  # before the engine knew it, which it does by now
                self._engine.cancel(request.request_id)

    def _ask(self) -> None:
        """Ask for as many requests as may lie here, unless it would be for a few, or just found that none is ready."""
        with self._changed:
            ahead = min(max(FIRST_AHEAD, self._num_taken), AHEAD)
            count = ahead - len(self._queue) - self._num_asked_for
            if self._no_more or count < ahead // 4 or time.monotonic() < self._ask_after_s:
                return
            self._num_asked_for += count
        self._control.send(("want", count))


def telling(error: Exception) -> EngineError:
    """The error as the other process raises it: a type and a sentence, without what it hangs on."""
    if isinstance(error, EngineError):
        return type(error)(*error.args)
    return EngineError(f"{type(error).__name__}: {error}")


def main() -> None:
    """Serve whoever holds the other ends of the two sockets."""
    leave_signals_to_parent()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("tts_batch").setLevel(logging.INFO)
    Host(*(Pipe(socket.socket(fileno=int(number))) for number in sys.argv[1:3])).run()


if __name__ == "__main__":
    main()
