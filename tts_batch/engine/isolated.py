"""An engine in a process of its own: what becomes of its clips never keeps its compute thread from the interpreter.

Checks, encoding and bookkeeping of 450 clips a second are as much Python as feeding a GPU, and would take turns with it
in one process (benchmarks/log.md, 2026-11-30). host.py is the other end.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NoReturn

from tts_batch.engine.child import wait_or_kill
from tts_batch.engine.errors import EngineDiedError, EngineError
from tts_batch.engine.request import EngineConfig, SpeechRequest, SpeechResult
from tts_batch.ipc.pipe import Pipe

AHEAD = 256  # requests at most that lie in the other process, so that the engine need not wait for the next …
FIRST_AHEAD = 16  # … and no more than the engine has, or this: their time runs, and they die with it
POLL_S = 0.005  # until the engine may ask again when no request was ready
CLOSE_S = 30.0


class IsolatedEngine:
    """An Engine that another process opens and runs. Requests must pickle, `Reference.load` too.

    Of the requests, some are asked for before the engine has room: as many as it has, from FIRST_AHEAD to AHEAD.
    Closing the iterator early closes the engine.
    """

    def __init__(self, spec: str, config: EngineConfig) -> None:
        """Open the engine that `registry.open_engine` would.

        Raises EngineConfigError and EngineError as that does, and EngineDiedError.
        """
        ends = [socket.socketpair() for _ in range(2)]
        numbers = [theirs.fileno() for _, theirs in ends]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tts_batch.engine.host", *map(str, numbers)],
            pass_fds=numbers,
            stdin=subprocess.DEVNULL,
        )
        for _, theirs in ends:
            theirs.close()
        # Two, so that results which nobody takes do not hold up what the engine asks for.
        self._control, self._results = (Pipe(ours) for ours, _ in ends)
        self._is_generating = False
        self._handing_over = threading.RLock()  # a request and its cancellation arrive in this order
        self._tell("open", spec, config)
        try:
            self.sample_rate, self.info = self._opened()
        except EngineError:
            self.close()
            raise

    def generate(self, requests: Iterable[SpeechRequest | None]) -> Iterator[SpeechResult]:
        """Results in completion order. `requests` is advanced on a thread of its own. One call at a time.

        Raises EngineError as the engine does, or where `requests` raises; EngineDiedError when its process ended.
        """
        if self._is_generating:
            raise EngineError("this engine is generating already; finish that iterator first.")
        self._is_generating, is_done = True, False
        feeder = _Feeder(requests, self._control, self._handing_over)
        self._tell("generate")
        feeder.start()
        try:
            while (message := self._receive(feeder))[0] == "result":
                yield message[1]
            if message[0] == "failed":
                raise message[1]
            is_done = True
        finally:
            if not is_done:
                self.close()
            feeder.join(CLOSE_S)
            self._is_generating = False

    def cancel(self, request_id: str) -> None:
        """End a request as "cancelled"; one that has ended, or was never asked for, is left alone."""
        with self._handing_over:
            self._tell("cancel", request_id)

    def close(self) -> None:
        """Have the engine closed and its process ended, by force after CLOSE_S."""
        self._tell("close")
        self._results.close()
        wait_or_kill(self._process, CLOSE_S)
        self._control.close()

    def _opened(self) -> tuple[int, Mapping[str, str]]:
        kind, *told = self._receive()
        if kind == "failed":
            raise told[0]
        sample_rate, info = told
        return sample_rate, info

    def _tell(self, *message: object) -> None:
        with suppress(OSError):  # gone: whoever waits for its results finds out
            self._control.send(message)

    def _receive(self, feeder: _Feeder | None = None) -> tuple:
        try:
            return self._results.receive()
        except EOFError:
            if feeder is not None and feeder.error is not None:
                error = feeder.error
                raise EngineError(f"the requests failed: {type(error).__name__}: {error}") from error
            self._say_how_it_died()

    def _say_how_it_died(self) -> NoReturn:
        if not wait_or_kill(self._process, CLOSE_S):
            raise EngineDiedError("the engine's process went silent and did not end.") from None
        status = self._process.returncode
        if status < 0:
            name = next((known.name for known in signal.Signals if known == -status), f"signal {-status}")
            raise EngineDiedError(f"the engine's process died of {name}.", -status)
        raise EngineDiedError(f"the engine's process ended with status {status}.")


class _Feeder(threading.Thread):
    """Hands requests over, as many as the engine's process asks for and are ready."""

    def __init__(self, requests: Iterable[SpeechRequest | None], control: Pipe, lock: threading.RLock) -> None:
        super().__init__(name="tts-batch-feeder", daemon=True)
        self._requests, self._control, self._lock = iter(requests), control, lock
        self.error: BaseException | None = None

    def run(self) -> None:
        with suppress(EOFError, OSError):  # the process is gone: whoever waits for its results finds out
            while (message := self._control.receive())[0] == "want":
                try:
                    self._hand_over(message[1])
                except (EOFError, OSError):
                    raise
                except Exception as error:  # a request that does not pickle, say
                    self._abort(error)

    def _hand_over(self, count: int) -> None:
        for left in range(count, 0, -1):
            with self._lock:
                try:
                    request = next(self._requests)
                except StopIteration:
                    self._control.send(("end",))
                    return
                except BaseException as error:
                    self._abort(error)
                    return
                if request is None:
                    self._control.send(("nothing", left))
                    return
                self._control.send(("request", request))

    def _abort(self, error: BaseException) -> None:
        """End the engine's process; whoever waits for its results raises the error."""
        self.error = error
        self._control.send(("abort",))
