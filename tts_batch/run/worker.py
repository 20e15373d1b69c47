"""The worker program, `python -m tts_batch.run.worker FD`: requests → engine → checks → clips → journal.

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
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tts_batch.config import Format
from tts_batch.engine.errors import EngineError
from tts_batch.engine.request import Engine, EngineConfig, SpeechRequest, SpeechResult
from tts_batch.records import Failure
from tts_batch.run.answers import Answers
from tts_batch.run.attempts import Active, is_device_broken
from tts_batch.run.channel import Channel, Message
from tts_batch.run.checks import CheckLimits, Examined, examine
from tts_batch.run.clips import CONTAINERS, clip_path, digest_of, encode_clip, encode_codes, quarantine_path
from tts_batch.run.journal import Outcome
from tts_batch.run.outcomes import row_outcome
from tts_batch.run.references import Tails
from tts_batch.run.writer import ClipWriter, DiskFullError

log = logging.getLogger(__name__)

IDLE_POLL_S = 0.05
WATCH_POLL_S = 0.1
PARENT_GONE, BROKEN = 70, 71  # exit statuses, for the log only


class Worker:
    """One engine and the rows it works on. `control` runs on a thread of its own, the rest on the main thread."""

    def __init__(self, channel: Channel, messages: Iterator[Message], start: Message) -> None:
        self._channel = channel
        self._messages = messages
        self._format: Format = start["format"]
        self._save_codes: bool = start["save_codes"]
        self._keep_failed_audio: bool = start["keep_failed_audio"]
        self._limits = CheckLimits(**start["checks"])
        self._tails = Tails(wanted=self._limits.ref_correlation is not None)
        self._time_limit_s: float | None = start["row_time_limit"]
        self._time_is_over = Failure("time_limit", f"It was not done after {self._time_limit_s or 0:g} s.")
        self._constants: dict[str, Any] = start["constants"]
        self._arrived = threading.Condition()
        self._inbox: deque[Active] = deque()
        self._active: dict[str, Active] = {}  # pulled by the engine, or waiting for another attempt
        self._again: deque[Active] = deque()
        self._answers = Answers(start["answer_s"], start["answer_frame_s"])
        self._no_more = self._stopping = False
        self._engine: Engine | None = None
        self._writer = ClipWriter(Path(start["out"]), Path(start["segment"]), self._report, self._give_up)
        threading.Thread(target=self._control, name="control", daemon=True).start()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()

    def run(self, start: Message) -> None:
        """Make rows until the parent has no more."""
        from tts_batch.engine.registry import open_engine

        engine = self._engine = open_engine(start["engine"], EngineConfig(**start["engine_config"]))
        info: Mapping[str, str] = getattr(engine, "info", {})
        self._constants |= {"runner": info.get("runner"), "dtype": info.get("dtype")}
        self._channel.send({"type": "ready", "info": dict(info)})
        try:
            for result in engine.generate(self._requests()):
                self._receive(result)
            if not self._stopping:
                self._fail_missing()
        finally:
            self._writer.close()  # what the engine gave before it broke is done
        self._channel.send({"type": "bye"})
        engine.close()

    # parent → worker

    def _control(self) -> None:
        for message in self._messages:
            with self._arrived:
                if message["type"] == "rows":
                    self._inbox.extend(map(Active.from_message, message["rows"]))
                elif message["type"] == "end":
                    self._no_more = True
                elif message["type"] == "stop":
                    self._no_more = self._stopping = True
                    self._inbox.clear()
                    timer = threading.Timer(message["deadline_s"], self._cancel_all)
                    timer.daemon = True
                    timer.start()
                self._arrived.notify()
        _die_with_children()

    def _cancel_all(self) -> None:
        with self._arrived:
            request_ids = list(self._active)
        for request_id in request_ids:
            if self._engine is not None:
                self._engine.cancel(request_id)

    def _watch(self) -> None:
        while True:
            time.sleep(WATCH_POLL_S)
            with self._arrived:
                ended = [*self._end_overtime(), *self._fail_lost()]
            for active in ended:
                if self._engine is not None:
                    self._engine.cancel(active.request.request_id)

    def _end_overtime(self) -> list[Active]:
        """Return the rows whose time is over now; the engine is to cancel them."""
        if self._time_limit_s is None:
            return []
        begun_before = time.monotonic() - self._time_limit_s
        running = [active for active in self._active.values() if active not in self._again]
        late = [active for active in running if active.began < begun_before and not active.overtime]
        for active in late:
            active.overtime = True
        return late

    def _fail_lost(self) -> list[Active]:
        """Fail the rows that the engine has lost. It may yet find them, so none is tried again here."""
        limit_s = self._answers.limit_s
        names = self._answers.take_lost(time.monotonic())
        lost = [self._active.pop(name) for name in names if name in self._active]
        for active in lost:
            message = f"The engine gave no answer for it within {limit_s:g} s, and went on."
            self._fail_unanswered(active, Failure("stalled", message))
        return lost

    # worker → engine

    def _requests(self) -> Iterator[SpeechRequest | None]:
        """Yield what to make next, None while nothing is ready; runs on the engine's thread.

        With nothing at all in the engine's hands it waits a moment before None, so that an idle engine does not spin.
        """
        while True:
            with self._arrived:
                self._answers.ask(time.monotonic())
                if not (self._again or self._inbox or self._active or self._no_more):
                    self._arrived.wait(IDLE_POLL_S)
                active = self._next()
                if active is None and self._no_more and not self._may_come_again():
                    return
                if active is not None:
                    active.begin_attempt()
                    request = active.request
                    self._answers.pull(request.request_id, request.max_frames, time.monotonic())
            yield None if active is None else active.request

    def _next(self) -> Active | None:
        if self._again and not self._stopping:
            active = self._again.popleft()
        elif self._inbox:
            active = self._inbox.popleft()
            self._channel.send({"type": "pulled"})
        else:
            return None
        self._active[active.request.request_id] = active
        return active

    def _may_come_again(self) -> bool:
        return not self._stopping and any(active.may_try_again for active in self._active.values())

    # engine → writer

    def _receive(self, result: SpeechResult) -> None:
        with self._arrived:
            active = self._active.get(result.request_id)
            if active is None or active in self._again:
                log.warning("ignored a result for %r: it was not asked for, or had one already", result.request_id)
                return
            self._answers.receive(result.request_id)
        self._end_attempt(active, result)
        with self._arrived:
            self._answers.received(time.monotonic())

    def _end_attempt(self, active: Active, result: SpeechResult) -> None:
        if is_device_broken(result):
            raise EngineError(f"its device is broken: {result.error}")
        examined = self._examine(active, result)
        failure = examined.failure
        if failure is not None:
            active.note_failure(failure, result, examined.checks)
            if self._keep_failed_audio:
                active.kept |= _failed_audio(active, result)
        with self._arrived:
            if failure is not None and active.may_try_again and not self._stopping:
                self._again.append(active)
                return
            del self._active[result.request_id]
        if self._stopping and result.finish_reason == "cancelled":
            return  # stays pending
        outcome = row_outcome(active, result, examined, self._constants)
        if failure is None:
            self._writer.put(outcome, encode=partial(self._encode, outcome, result, active.kept))
        else:
            self._writer.put(outcome, active.kept)
        if not self._active and not self._inbox:
            self._writer.hurry()

    def _examine(self, active: Active, result: SpeechResult) -> Examined:
        if active.overtime and result.finish_reason == "cancelled":
            return Examined(self._time_is_over)
        sounds = result.audio is not None and not active.request.x_vector_only
        tail = self._tails.of(active.request.reference) if sounds else None
        return examine(result, active.request.max_frames, active.expected_s, self._limits, tail)

    def _encode(
        self, outcome: Outcome, result: SpeechResult, kept: Mapping[str, bytes]
    ) -> tuple[Outcome, Mapping[str, bytes]]:
        """Return the record of a good row with its files; runs on a thread of the writer's."""
        assert result.audio is not None, "find_fault has seen it"
        path = clip_path(outcome.id, CONTAINERS[self._format].suffix)
        clip = encode_clip(result.audio, result.sample_rate, self._format)
        outcome = replace(outcome, audio=path, audio_bytes=len(clip), audio_digest=digest_of(clip))
        files = {path: clip, **kept}
        if self._save_codes and result.codes is not None:
            path, codes = clip_path(outcome.id, ".npy"), encode_codes(result.codes)
            outcome = replace(outcome, codes=path, codes_bytes=len(codes), codes_digest=digest_of(codes))
            files[path] = codes
        return outcome, files

    def _fail_missing(self) -> None:
        failure = Failure("engine_error", "The engine ended without a result for this row.")
        with self._arrived:  # the watch may be failing one of them
            for active in self._active.values():
                self._fail_unanswered(active, failure)
            self._active.clear()

    def _fail_unanswered(self, active: Active, failure: Failure) -> None:
        if active.overtime:
            failure = self._time_is_over
        active.note_failure(failure, None)
        self._writer.put(row_outcome(active, None, Examined(failure), self._constants), active.kept)

    # writer → parent

    def _report(self, outcomes: list[Outcome]) -> None:
        rows = [[outcome.id, outcome.status, outcome.duration_s or 0.0] for outcome in outcomes]
        self._channel.send({"type": "done", "rows": rows})

    def _give_up(self, error: Exception) -> None:
        kind = "disk_full" if isinstance(error, DiskFullError) else "broken"
        self._channel.send({"type": kind, "error": str(error)})
        _leave(BROKEN)


def _failed_audio(active: Active, result: SpeechResult) -> dict[str, bytes]:
    audio = result.audio
    if audio is None or audio.ndim != 1 or not audio.size or result.sample_rate <= 0:
        return {}
    return {
        quarantine_path(result.request_id, len(active.attempt_seeds)): encode_clip(audio, result.sample_rate, "wav")
    }


def _die_with_children() -> None:
    """The parent is gone and nobody will collect what the engine started: end the whole process group."""
    with suppress(ProcessLookupError):  # not a group's leader: started by hand
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(PARENT_GONE)


def _leave(status: int) -> None:
    """End at once: an exit handler of an engine could wait for ever. The parent ends what is left of the group."""
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    """Serve the parent at the other end of the socket whose number is the only argument."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they reach the parent, which decides
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("tts_batch").setLevel(logging.INFO)
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    messages = channel.receive()
    start = next(messages)
    try:
        Worker(channel, messages, start).run(start)
    except Exception as error:
        traceback.print_exc()
        said = str(error) if isinstance(error, EngineError) else f"{type(error).__name__}: {error}"
        channel.send({"type": "broken", "error": said})
        _leave(BROKEN)
    _leave(0)


if __name__ == "__main__":
    main()
