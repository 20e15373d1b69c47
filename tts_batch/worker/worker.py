"""The worker program, `python -m tts_batch.worker.worker FD`: requests → engine → checks → clips → journal.

It is told what to do over the socket FD and trusts no engine: every result is held against what was asked. When the
parent is gone, so is the worker, and whatever it started.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tts_batch.choices import Format
from tts_batch.engine.child import leave_signals_to_parent
from tts_batch.engine.errors import EngineDiedError, EngineError
from tts_batch.engine.request import Engine, EngineConfig, SpeechRequest, SpeechResult
from tts_batch.ipc.channel import Channel, Message
from tts_batch.records import Failure
from tts_batch.store.clips import CONTAINERS, encode_clip, encode_files, quarantine_path
from tts_batch.store.journal import Outcome
from tts_batch.worker.answers import Answers
from tts_batch.worker.checks import Examined
from tts_batch.worker.examiner import EXAMINING_THREADS, Examiner
from tts_batch.worker.judge import Judge
from tts_batch.worker.outcomes import row_outcome, with_files
from tts_batch.worker.rows import ActivePiece, ActiveRow, is_device_broken
from tts_batch.worker.work_queue import WorkQueue
from tts_batch.worker.writer import ClipWriter, DiskFullError

log = logging.getLogger("tts_batch.worker.worker")  # __name__ is "__main__" here

IDLE_POLL_S = 0.05
WATCH_POLL_S = 0.1
PARENT_GONE, BROKEN = 70, 71  # exit statuses, for the log only


class Worker:
    """One engine and the rows it works on.

    The main thread takes what the engine gives; rows end on the thread of the `Examiner`, or by the watch, and
    `_arrived` guards all that they share. `_control`, `_watch` and `_requests` have threads of their own.
    """

    def __init__(self, channel: Channel, messages: Iterator[Message], start: Message) -> None:
        self._channel = channel
        self._messages = messages
        self._format: Format = start["format"]
        self._save_codes: bool = start["save_codes"]
        self._keep_failed_audio: bool = start["keep_failed_audio"]
        self._judge = Judge(start, EXAMINING_THREADS)
        self._time_limit_s: float | None = start["row_time_limit"]
        self._constants: dict[str, Any] = start["constants"]
        self._arrived = threading.Condition()
        self._queue = WorkQueue()
        self._answers = Answers(start["answer_s"], start["answer_frame_s"])
        self._no_more = self._stopping = False
        self._engine: Engine | None = None
        self._engine_wait_s = self._disk_wait_s = 0.0  # of the main thread
        self._writer = ClipWriter(Path(start["out"]), Path(start["segment"]), self._report, self._give_up)
        self._examiner = Examiner(self._judge.examine, self._end_attempt, self._break)
        threading.Thread(target=self._control, name="control", daemon=True).start()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def run(self, start: Message) -> None:
        """Make rows until the parent has no more."""
        engine = self._engine = _open(start["engine"], EngineConfig(**start["engine_config"]))
        info: Mapping[str, str] = getattr(engine, "info", {})
        self._constants |= {"runner": info.get("runner"), "dtype": info.get("dtype")}
        self._channel.send({"type": "ready", "info": dict(info)})
        with closing(self._judge), closing(self._writer):
            with closing(self._examiner):  # what the engine gave before it broke is done
                self._take_results(engine)
            if not self._stopping:
                self._fail_missing()
        self._channel.send({"type": "bye"})
        engine.close()

    # parent → worker

    def _control(self) -> None:
        for message in self._messages:
            with self._arrived:
                if message["type"] == "rows":
                    for row in message["rows"]:
                        self._queue.add(ActiveRow.from_message(row))
                elif message["type"] == "end":
                    self._no_more = True
                elif message["type"] == "stop":
                    self._no_more = self._stopping = True
                    self._queue.drop_waiting(but_begun=True)
                    timer = threading.Timer(message["deadline_s"], self._cancel_all)
                    timer.daemon = True
                    timer.start()
                self._arrived.notify()
        _die_with_children()

    def _cancel_all(self) -> None:
        with self._arrived:
            self._queue.drop_waiting()
            request_ids = [piece.id for piece in self._queue.in_engine]
        self._cancel(request_ids)

    def _cancel(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            if self._engine is not None:
                self._engine.cancel(request_id)

    def _watch(self) -> None:
        while True:
            time.sleep(WATCH_POLL_S)
            with self._arrived:
                ended = [*self._end_overtime(), *self._fail_lost()]
            self._cancel(ended)

    def _end_overtime(self) -> list[str]:
        """Return what the engine has of rows whose time is over now, to be cancelled."""
        if self._time_limit_s is None:
            return []
        begun_before = time.monotonic() - self._time_limit_s
        running = self._queue.in_engine
        late = [piece for piece in running if piece.row.began < begun_before and not piece.overtime]
        for piece in late:
            piece.overtime = piece.row.overtime = True
        return [piece.id for piece in late]

    def _fail_lost(self) -> list[str]:
        """Fail the rows that the engine has lost, and return what it has of them.

        It may yet find them, so none is tried again here.
        """
        limit_s = self._answers.limit_s
        failure = Failure("stalled", f"The engine gave no answer for it within {limit_s:g} s, and went on.")
        lost = map(self._queue.find, self._answers.take_lost(time.monotonic()))
        return self._fail_unanswered((piece for piece in lost if piece is not None), failure)

    # worker → engine

    def _requests(self) -> Iterator[SpeechRequest | None]:
        """Yield what to make next, None while nothing is ready; runs on the engine's thread.

        With nothing at all in the engine's hands it waits a moment before None, so that an idle engine does not spin.
        """
        while True:
            with self._arrived:
                self._answers.ask(time.monotonic())
                if self._queue.is_idle and not self._is_over():
                    self._arrived.wait(IDLE_POLL_S)
                piece = self._queue.pull(again=not self._stopping)
                if piece is None and self._is_over():
                    return
                is_new = piece is not None and not piece.row.began
                if piece is not None:
                    piece.begin_attempt()
                    self._answers.pull(piece.id, piece.request.max_frames, time.monotonic())
                    self._judge.expect(piece.request)
            if is_new:  # without the lock: the parent may read this only when `control` has taken its next rows
                self._channel.send({"type": "pulled"})
            yield None if piece is None else piece.request

    def _is_over(self) -> bool:
        """Whether the engine gets nothing more, once it has pulled what waits."""
        return self._no_more and (self._stopping or not self._queue.may_grow)

    # engine → writer

    def _take_results(self, engine: Engine) -> None:
        begun = asked = time.monotonic()
        for result in engine.generate(self._requests()):
            self._engine_wait_s += time.monotonic() - asked
            self._receive(result)
            asked = time.monotonic()
        log.info(
            "of %.1f s of results, %.1f s were waits for the engine, and %.1f s for checks and disk (the disk: %.1f s)",
            asked - begun,
            self._engine_wait_s,
            self._examiner.wait_s,
            self._disk_wait_s,
        )

    def _receive(self, result: SpeechResult) -> None:
        with self._arrived:
            piece = self._queue.answer(result.request_id)
            if piece is None and not self._queue.take_dropped(result.request_id):
                log.warning("ignored a result for %r: it was not asked for, or had one already", result.request_id)
                return
            self._answers.receive(result.request_id)
        if piece is not None:
            if is_device_broken(result):
                raise EngineError(f"its device is broken: {result.error}")
            self._hand_on(piece, result)
        with self._arrived:
            self._answers.received(time.monotonic())

    def _hand_on(self, piece: ActivePiece, result: SpeechResult) -> None:
        waited_s, disk_s = self._examiner.wait_s, self._writer.wait_s
        self._examiner.put(piece, result)
        self._disk_wait_s += min(self._examiner.wait_s - waited_s, self._writer.wait_s - disk_s)

    def _end_attempt(self, piece: ActivePiece, result: SpeechResult, examined: Examined) -> None:
        """End the row with its last good piece, or with the first that may not be tried again."""
        row, at_fault = piece.row, [piece]
        if examined.failure is None:
            if not self._is_made_with(piece, result, examined):
                return
            if row.is_split:
                result, examined, at_fault = *self._judge.join(row), row.pieces
        failure = examined.failure
        blamed = piece if piece.result is None else None
        kept = _failed_audio(row, result, blamed) if failure is not None and self._keep_failed_audio else {}
        with self._arrived:
            if not self._queue.is_answered(piece):
                return  # its row has failed by another piece, which the engine has lost
            if failure is not None:
                row.note_failure(failure, result, examined.checks, blamed)
                row.kept |= kept
            may_try_again = failure is not None and all(one.may_try_again for one in at_fault)
            stopping = self._stopping
            self._arrived.notify()  # the engine may wait for another attempt, or for there to be none
            if may_try_again and not stopping:
                self._queue.try_again(at_fault)
                return
            self._queue.end(piece)
            useless = self._queue.forget(row)
        self._cancel(useless)
        if stopping and (may_try_again or result.finish_reason == "cancelled"):
            return  # stays pending
        outcome = row_outcome(row, result, examined, self._constants)
        encode = partial(self._encode, outcome, result, examined, row.kept)
        self._writer.put(outcome, row.kept, encode if failure is None else None)
        if not self._queue:
            self._writer.hurry()

    def _encode(
        self, outcome: Outcome, result: SpeechResult, examined: Examined, kept: Mapping[str, bytes]
    ) -> tuple[Outcome, Mapping[str, bytes]]:
        """Return the record of a good row with its files; runs on a thread of the writer's."""
        files = examined.files or encode_files(result, self._format, self._save_codes)
        return with_files(outcome, files, CONTAINERS[self._format].suffix, kept)

    def _is_made_with(self, piece: ActivePiece, result: SpeechResult, examined: Examined) -> bool:
        """Keep the good result of a piece, and say whether its row is made with it."""
        with self._arrived:
            if not self._queue.is_answered(piece):
                return False
            piece.result, piece.checks = result, examined.checks
            if piece.row.is_made:
                return True
            self._queue.end(piece)
            self._arrived.notify()
        self._channel.send({"type": "piece"})
        return False

    def _fail_missing(self) -> None:
        failure = Failure("engine_error", "The engine ended without a result for this row.")
        with self._arrived:  # the watch may be failing one of them
            self._fail_unanswered(self._queue.active, failure)

    def _fail_unanswered(self, pieces: Iterable[ActivePiece], failure: Failure) -> list[str]:
        """Fail the rows of pieces, each for its first one, and return what the engine has of them."""
        useless: list[str] = []
        first_of = {piece.row: piece for piece in reversed([*pieces])}
        for row, piece in first_of.items():
            told = piece.blame(self._judge.time_is_over if row.overtime else failure)
            row.note_failure(told, None, piece=piece)
            useless += self._queue.forget(row)
            self._writer.put(row_outcome(row, None, Examined(told), self._constants), row.kept)
        return useless

    # writer → parent

    def _report(self, outcomes: list[Outcome]) -> None:
        rows = [[outcome.id, outcome.status, outcome.duration_s or 0.0] for outcome in outcomes]
        self._channel.send({"type": "done", "rows": rows})

    def _give_up(self, error: Exception) -> None:
        kind = "disk_full" if isinstance(error, DiskFullError) else "broken"
        self._channel.send({"type": kind, "error": str(error)})
        _leave(BROKEN)

    def _break(self, error: Exception) -> None:
        """A result could not be examined, or its row not ended: what came before is done, and the worker ends."""
        self._writer.close()
        _end_broken(self._channel, error)


def _open(spec: str, config: EngineConfig) -> Engine:
    """Open the engine: our own in a process of its own, others here, since they may have processes themselves."""
    if spec == "native":
        from tts_batch.engine.isolated import IsolatedEngine

        return IsolatedEngine(spec, config)
    from tts_batch.engine.registry import open_engine

    return open_engine(spec, config)


def _failed_audio(row: ActiveRow, result: SpeechResult, piece: ActivePiece | None) -> dict[str, bytes]:
    """Return the audio of a failed attempt at a piece, or at all of them, under its path."""
    audio = result.audio
    if audio is None or audio.ndim != 1 or not audio.size or result.sample_rate <= 0:
        return {}
    number = piece.number + 1 if piece is not None and row.is_split else None
    path = quarantine_path(row.id, len(row.tried) + (piece or row.pieces[0]).attempts, number)
    return {path: encode_clip(audio, result.sample_rate, "wav")}


def _die_with_children() -> None:
    """The parent is gone and nobody will collect what the engine started: end the whole process group."""
    with suppress(ProcessLookupError):  # not a group's leader: started by hand
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(PARENT_GONE)


def _leave(status: int) -> None:
    """End at once: an exit handler of an engine could wait for ever. The parent ends what is left of the group."""
    sys.stderr.flush()
    os._exit(status)


def _die_of(number: int) -> None:
    """End as the engine's process did, for the parent to see."""
    sys.stderr.flush()
    with suppress(OSError):  # of SIGKILL, which has no other way
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _end_broken(channel: Channel, error: Exception) -> None:
    """Say what the worker breaks of, and end it."""
    if isinstance(error, EngineDiedError) and error.signal_number is not None:
        _die_of(error.signal_number)  # the last lines of the log are the engine's
    traceback.print_exception(error)
    said = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
    with suppress(OSError):  # the parent is gone, or does not read
        channel.send({"type": "broken", "error": said})
    _leave(BROKEN)


def main() -> None:
    """Serve the parent at the other end of the socket whose number is the only argument."""
    leave_signals_to_parent()
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("tts_batch").setLevel(logging.INFO)
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    messages = channel.receive()
    start = next(messages)
    try:
        Worker(channel, messages, start).run(start)
    except Exception as error:
        _end_broken(channel, error)
    _leave(0)


if __name__ == "__main__":
    main()
