"""One worker: an engine, the rows that it makes, and the clip processes that finish them, owned by one thread.

The main thread is one loop over an inbox of the parent's messages, the clip processes' answers, the engine's results
and time. Nothing else changes the worker's state. When the parent is gone, so is the worker, and all it started.
"""

from __future__ import annotations

import logging
import os
import select
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from tts_batch.engine.errors import EngineError
from tts_batch.engine.registry import open_engine
from tts_batch.engine.request import Engine
from tts_batch.ipc.messages import (
    ActiveRow,
    AssignRows,
    Ended,
    EngineReady,
    FromWorker,
    NoMoreRows,
    OpenEngine,
    RetryPieces,
    RowsProgress,
    StopWorker,
    ToWorker,
    WorkerClosing,
    WorkerFailed,
)
from tts_batch.ipc.processes import leave_signals_to_parent
from tts_batch.ipc.transport import Channel
from tts_batch.worker.clip_pool import ClipPool, ClipProcess, ClipProcessError
from tts_batch.worker.row_maker import RowMaker

log = logging.getLogger(__name__)

STEP_S = 0.02  # how long the engine may hold up the inbox while it computes
IDLE_S = 0.5  # how long the inbox is awaited while the engine holds nothing
SIGN_OF_LIFE_S = 0.5
PARENT_GONE, FAILED = 70, 71  # exit statuses, for the log only


class Worker:
    """The loop, and what it owns."""

    def __init__(self, channel: Channel[FromWorker, ToWorker], opening: OpenEngine, engine: Engine, clips: ClipPool):
        self._channel, self._engine, self._clips = channel, engine, clips
        self._rows = RowMaker(
            engine, clips.put, opening.deadlines, self._report, trusts_buffers=opening.engine == "native"
        )
        self._inbox = selectors.DefaultSelector()
        self._inbox.register(channel, selectors.EVENT_READ)
        self._watched: set[ClipProcess] = set()
        self._ended: Ended = {}
        self._no_more_rows = False
        self._drop_at_s: float | None = None  # during a stop: when rows under way are dropped
        self._has_asked_to_commit = False
        self._reported_at_s = 0.0
        self._num_results_reported = 0
        for message in channel.take_read():  # what came while the engine was opened
            self._take(message)

    def run(self) -> None:
        """Make rows until the parent has no more, and all have ended."""
        began_s, engine_s, paused_s = time.monotonic(), 0.0, 0.0
        while not (self._no_more_rows and not self._rows.has_rows and self._clips.is_idle):
            is_full = self._clips.is_full
            may_step = self._rows.is_engine_busy and not is_full
            started_s = time.monotonic()
            self._take_messages(0.0 if may_step else STEP_S if is_full else IDLE_S)
            paused_s += (time.monotonic() - started_s) * is_full
            self._rows.feed()
            if self._clips.is_full:
                self._rows.pause()
            else:
                started_s = time.monotonic()
                self._rows.step(STEP_S if self._rows.is_engine_busy else 0.0)
                engine_s += time.monotonic() - started_s
            self._report()
            self._commit_if_last()
            if self._drop_at_s is not None and time.monotonic() >= self._drop_at_s:
                self._rows.drop_unfinished()
        log.info(
            "of %.1f s, waited %.1f s for the engine and %.1f s for clip processes",
            time.monotonic() - began_s,
            engine_s,
            paused_s,
        )

    def finish_given(self) -> None:
        """Have all that the engine gave before it broke recorded, and report it."""
        deadline_s = time.monotonic() + 60.0
        self._clips.commit_now()
        while not self._clips.is_idle and time.monotonic() < deadline_s:
            self._take_messages(STEP_S)
        self._report()

    def _take_messages(self, timeout_s: float) -> None:
        """Take what the parent and the clip processes have sent, waiting at most `timeout_s` for it."""
        self._watch_clip_processes()
        for key, _ in self._inbox.select(timeout_s):
            if isinstance(key.data, ClipProcess):
                for answer in self._clips.receive(key.data):
                    if isinstance(answer, RetryPieces):
                        self._rows.retry(answer)
                        continue
                    for row_id in answer.ended:
                        self._rows.row_ended(row_id)
                    self._ended |= answer.ended
                continue
            messages = self._channel.receive_ready()
            if messages is None:
                end_with_children()
            for message in messages or ():
                self._take(message)

    def _watch_clip_processes(self) -> None:
        now = set(self._clips.processes)
        for process in self._watched - now:
            self._inbox.unregister(process.channel)
        for process in now - self._watched:
            self._inbox.register(process.channel, selectors.EVENT_READ, process)
        self._watched = now

    def _take(self, message: ToWorker) -> None:
        match message:
            case AssignRows(rows):
                for row in rows:
                    self._rows.add(ActiveRow(row))
            case NoMoreRows():
                self._no_more_rows = True
            case StopWorker(deadline_s):
                self._no_more_rows = True
                self._rows.stop()
                self._drop_at_s = time.monotonic() + deadline_s
            case OpenEngine():
                raise TypeError("the engine is open")

    def _report(self, begun: Sequence[str] = ()) -> None:
        """Tell the parent what has begun and ended; from within a long row, that there is life."""
        now_s, num_results = time.monotonic(), self._rows.num_results
        is_alive = num_results > self._num_results_reported and now_s - self._reported_at_s >= SIGN_OF_LIFE_S
        if begun or self._ended or is_alive:
            self._channel.send(RowsProgress(tuple(begun), self._ended))
            self._ended = {}
            self._reported_at_s, self._num_results_reported = now_s, num_results

    def _commit_if_last(self) -> None:
        """When every row here is being finished, none of them waits for more rows to be committed with."""
        is_last = not self._rows.is_making and not self._clips.is_idle
        if is_last and not self._has_asked_to_commit:
            self._clips.commit_now()
        self._has_asked_to_commit = is_last


def serve(channel: Channel[FromWorker, ToWorker], opening: OpenEngine) -> None:
    """Open the engine and make rows; what cannot be done raises."""
    clips = ClipPool(opening.out, opening.segments, opening.max_clip_processes, inherited=channel.fileno())
    engine = open_engine(opening.engine, opening.engine_config)
    info = {str(name): str(value) for name, value in dict(getattr(engine, "info", {})).items()}
    clips.open(opening.rules, replace(opening.labels, runner=info.get("runner"), dtype=info.get("dtype")))
    channel.send(EngineReady(info))
    worker = Worker(channel, opening, engine, clips)
    try:
        worker.run()
    except ClipProcessError:
        raise
    except Exception:
        worker.finish_given()
        raise
    clips.close()
    channel.send(WorkerClosing())
    engine.close()


def end_with_parent(channel: Channel[FromWorker, ToWorker]) -> None:
    """Watch for the parent's end on a thread of its own: the main thread may be inside the engine for long."""

    def watch() -> None:
        closed = select.poll()
        closed.register(channel, select.POLLRDHUP)  # over a network the parent's end is no POLLHUP
        while not closed.poll():
            pass
        end_with_children()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def end_with_children() -> None:
    """The parent is gone and nobody will collect what the engine started: end the whole process group."""
    with suppress(ProcessLookupError):  # not a group's leader: started by hand
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(PARENT_GONE)


def fail(channel: Channel[FromWorker, ToWorker], error: Exception) -> None:
    """Report the error that ends the worker, and exit at once: an exit handler of an engine could wait for ever."""
    traceback.print_exception(error)
    is_known = isinstance(error, EngineError | ClipProcessError)
    disk_full = isinstance(error, ClipProcessError) and error.disk_full
    with suppress(OSError):  # the parent is gone, or does not read
        channel.send(WorkerFailed(str(error) if is_known else f"{type(error).__name__}: {error}", disk_full))
    sys.stderr.flush()
    os._exit(FAILED)


def main() -> None:
    """Serve the parent at the other end of the socket whose number is the only argument."""
    leave_signals_to_parent()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("tts_batch").setLevel(logging.INFO)
    channel = Channel[FromWorker, ToWorker](
        socket.socket(fileno=int(sys.argv[1])), (OpenEngine, AssignRows, NoMoreRows, StopWorker)
    )
    opening = channel.receive()
    if not isinstance(opening, OpenEngine):
        return
    end_with_parent(channel)
    try:
        serve(channel, opening)
    except Exception as error:
        fail(channel, error)
    sys.stderr.flush()
    os._exit(0)
