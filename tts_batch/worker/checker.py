"""Processes that examine and encode clips for a worker, since its threads do not do so at once.

A clip is some sixty short calls of numpy. Each gives the interpreter back, and has to wait for it again while forty
other threads of the worker want it: with 450 clips a second four threads examined fewer than one alone.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, replace

from tts_batch.choices import Format
from tts_batch.engine.child import leave_signals_to_parent, wait_or_kill
from tts_batch.engine.request import SpeechResult
from tts_batch.ipc.pipe import Pipe
from tts_batch.store.clips import encode_files
from tts_batch.worker.checks import CheckLimits, Examined, examine
from tts_batch.worker.sound import Audio, Tail
from tts_batch.worker.trim import trim

log = logging.getLogger(__name__)

CLOSE_S = 10.0
_PROGRAM = "from tts_batch.worker.checker import main; main()"  # not -m, under which the classes here have other names


@dataclass(frozen=True, slots=True)
class Rules:
    """What a run holds its clips to, and how it writes them."""

    limits: CheckLimits
    trim_margin_s: float | None
    format: Format
    save_codes: bool


@dataclass(frozen=True, slots=True)
class Question:
    """A result, and what it takes to examine it."""

    result: SpeechResult
    max_frames: int
    expected_s: float  # of speech, at a normal pace
    tail: Tail | None  # of its reference
    is_whole: bool  # a good one is a row's clip, and is encoded


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found, and the audio if it was trimmed."""

    examined: Examined
    trimmed: Audio | None = None


def answer(question: Question, rules: Rules) -> Answer:
    """Trim a result where that is asked for, examine it, and encode it if it is good."""
    result, removed = question.result, dict[str, float]()
    if rules.trim_margin_s is not None:
        result, removed = trim(result, rules.trim_margin_s)
    examined = examine(result, question.max_frames, question.expected_s, rules.limits, question.tail)
    examined = replace(examined, checks=examined.checks | removed)
    if examined.failure is None and question.is_whole:
        examined = replace(examined, files=encode_files(result, rules.format, rules.save_codes))
    return Answer(examined, result.audio if removed else None)


class CheckerDiedError(Exception):
    """A process that checks clips has ended by itself."""


class Checkers:
    """Answers on the threads that ask while few do; when `num_threads` ask at once, each gets a process of its own.

    So none is started where clips come one by one. Where the machine starts none, threads go on answering.
    """

    def __init__(self, rules: Rules, num_threads: int) -> None:
        self._rules, self._num_threads = rules, num_threads
        self._lock = threading.Lock()
        self._num_asking = 0
        self._own = threading.local()
        self._started: list[Checker] = []
        self._is_refused = False  # the machine starts no more

    def ask(self, question: Question) -> Answer:
        """Examine a result. Raises CheckerDiedError when two processes ended while they had it."""
        with self._lock:
            self._num_asking += 1
            may_start = self._num_asking >= self._num_threads
        try:
            checker = self._checker(may_start)
            return self._ask_apart(checker, question) if checker else answer(question, self._rules)
        finally:
            with self._lock:
                self._num_asking -= 1

    def _ask_apart(self, checker: Checker, question: Question) -> Answer:
        """Ask a process, and if it ends, by whatever or whoever, another one: an engine takes long to open again."""
        try:
            return checker.ask(question)
        except CheckerDiedError as error:
            log.warning("%s; another one takes it", error)
            checker.close()
            self._own.checker = None
            if (fresh := self._checker(may_start=True)) is None:
                raise  # not on this thread: what ended one process could end this one
            return fresh.ask(question)

    def close(self) -> None:
        """End the processes; nobody asks any more."""
        for checker in self._started:
            checker.close()

    def _checker(self, may_start: bool) -> Checker | None:
        """The process of this thread, if it has one or may start it now."""
        checker: Checker | None = getattr(self._own, "checker", None)
        if checker is None and may_start and not self._is_refused:
            try:
                checker = self._own.checker = Checker(self._rules)
            except OSError as error:
                self._is_refused = True
                log.warning("checking clips on threads, since a process for it cannot be started: %s", error)
                return None
            with self._lock:
                self._started.append(checker)
        return checker


class Checker:
    """A process that answers one question after another. It ends with whoever started it."""

    def __init__(self, rules: Rules) -> None:
        """Raises OSError when the machine starts no process."""
        ours, theirs = socket.socketpair()
        self._pipe = Pipe(ours)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
                    env=os.environ | {"OMP_NUM_THREADS": "1"},  # else NumPy has a thread for each core
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                )
            except OSError:
                self._pipe.close()
                raise
        self._pipe.send(rules)

    def ask(self, question: Question) -> Answer:
        """Have a result examined. Raises CheckerDiedError when the process is gone."""
        try:
            self._pipe.send(question)
            found: Answer = self._pipe.receive()
        except (EOFError, OSError):
            name = question.result.request_id
            raise CheckerDiedError(f"a process that checks clips ended while it had that of {name!r}") from None
        return found

    def close(self) -> None:
        """End the process, by force after CLOSE_S."""
        self._pipe.close()
        wait_or_kill(self._process, CLOSE_S)


def main() -> None:
    """Answer whoever holds the other end of the socket whose number is the only argument."""
    leave_signals_to_parent()
    pipe = Pipe(socket.socket(fileno=int(sys.argv[1])))
    with suppress(EOFError, OSError):
        rules = pipe.receive()
        while True:
            pipe.send(answer(pipe.receive(), rules))
