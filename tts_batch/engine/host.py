"""The program that runs an isolated engine, `python -m tts_batch.engine.host CONTROL RESULTS`: two sockets' numbers.

It opens the engine that it is told, serves one `generate` after another, and ends with whoever started it.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import closing

from tts_batch.engine.errors import EngineError
from tts_batch.engine.isolated import AHEAD
from tts_batch.engine.pipe import Pipe
from tts_batch.engine.registry import open_engine
from tts_batch.engine.request import Engine, SpeechRequest

OTHER_END_GONE = 70  # exit status, for whoever looks


class Host:
    """One engine. The main thread opens it and generates, another one listens from the start."""

    _engine: Engine

    def __init__(self, control: Pipe, results: Pipe) -> None:
        self._control, self._results = control, results
        self._calls: queue.SimpleQueue[str] = queue.SimpleQueue()  # "generate" or "close"
        self._lock = threading.Lock()
        self._queue: deque[SpeechRequest] = deque()  # here, and not yet taken by the engine
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
            self._generate()
        self._engine.close()

    def _listen(self) -> None:
        try:
            while True:
                kind, *told = self._control.receive()
                with self._lock:
                    if kind == "request":
                        self._queue.append(told[0])
                    elif kind == "end":
                        self._no_more = True
                    elif kind == "abort":
                        os._exit(OTHER_END_GONE)
                    elif kind in ("generate", "close"):
                        self._closing = kind == "close"
                        self._calls.put(kind)
                    elif kind == "cancel" and told[0] in {self._handed_over, *(r.request_id for r in self._queue)}:
                        self._cancelled.add(told[0])
                if kind == "cancel":
                    self._engine.cancel(told[0])
        except EOFError:
            os._exit(OTHER_END_GONE)

    def _generate(self) -> None:
        self._no_more = False
        self._control.send(("want", AHEAD))
        end: tuple = ("done",)
        try:
            with closing(self._engine.generate(self._requests())) as results:
                for result in results:
                    self._results.send(("result", result))
                    if self._closing:
                        return
        except OSError:  # nobody takes results any more
            return
        except Exception as error:
            traceback.print_exc()
            end = ("failed", telling(error))
        self._control.send(("over",))
        self._results.send(end)

    def _requests(self) -> Iterator[SpeechRequest | None]:
        """What the engine pulls, on its own thread; more is asked for before it runs out."""
        num_taken = 0
        while not self._closing:
            with self._lock:
                request = self._queue.popleft() if self._queue else None
                if request is None and self._no_more:
                    return
                self._handed_over = request and request.request_id
            if request is None:
                yield None
                continue
            num_taken += 1
            if num_taken % (AHEAD // 4) == 0:
                self._control.send(("want", AHEAD // 4))
            yield request
            with self._lock:
                self._handed_over = None
                is_cancelled = request.request_id in self._cancelled
                self._cancelled.discard(request.request_id)
            if is_cancelled:  # before the engine knew it, which it does by now
                self._engine.cancel(request.request_id)


def telling(error: Exception) -> EngineError:
    """The error as the other process raises it: a type and a sentence, without what it hangs on."""
    if isinstance(error, EngineError):
        return type(error)(*error.args)
    return EngineError(f"{type(error).__name__}: {error}")


def main() -> None:
    """Serve whoever holds the other ends of the two sockets."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they reach who decides
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("tts_batch").setLevel(logging.INFO)
    Host(*(Pipe(socket.socket(fileno=int(number))) for number in sys.argv[1:3])).run()


if __name__ == "__main__":
    main()
