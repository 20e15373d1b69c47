"""RowMaker: rows through one engine. It feeds requests, takes results, counts attempts, and keeps deadlines.

Used from one thread, by a worker as by a Synthesizer; they differ in how a row whose results are complete is finished.
No engine is trusted: what it returns is checked when it arrives, and what it does not return is missed.
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tts_batch.engine.errors import EngineError
from tts_batch.engine.request import NUM_CODEBOOKS, Engine, SpeechResult
from tts_batch.ipc.messages import ActivePiece, ActiveRow, Deadlines, RetryPieces
from tts_batch.records import Failure

log = logging.getLogger(__name__)

CHECK_TIME_EVERY_S = 0.1
_FAILED = ("length", "loop", "error", "cancelled")
_DEVICE_IS_BROKEN = re.compile(r"\b(CUDA|HIP|cuBLAS|cuDNN|cuFFT) error|device-side assert|\bCU(BLAS|DNN|FFT)_STATUS_")
_MAX_CODE = 32_767  # codes are saved as int16
_EFFECTIVE = ("language", "speaker", "instruct")  # what a record keeps of it


class RowMaker:
    """Every row that is added is given to `finish` whenever an attempt at it is complete, until `row_ended`.

    What `finish` finds comes back by `retry` or `row_ended`. A row that is dropped by a stop is given to nobody.
    """

    def __init__(
        self,
        engine: Engine,
        finish: Callable[[ActiveRow], None],
        deadlines: Deadlines,
        report_begun: Callable[[list[str]], None] = lambda row_ids: None,
        *,
        trusts_buffers: bool = False,
    ) -> None:
        """`report_begun` gets the ids of rows whose first request the engine is about to get.

        `trusts_buffers`: the engine's arrays are the receiver's, as the contract says, and need no copy.
        """
        self._engine, self._finish, self._deadlines = engine, finish, deadlines
        self._report_begun = report_begun
        self._trusts_buffers = trusts_buffers
        self._rows: dict[str, ActiveRow] = {}  # that have not ended
        self._waiting: deque[tuple[ActiveRow, ActivePiece]] = deque()
        self._again: deque[tuple[ActiveRow, ActivePiece]] = deque()  # to be tried again; these go first
        self._in_engine: dict[str, tuple[ActiveRow, ActivePiece]] = {}
        self._pending = PendingRequests(deadlines)
        self._is_stopping = False
        self._next_check_s = 0.0
        self.num_results = 0  # that were taken from the engine

    @property
    def has_rows(self) -> bool:
        """Whether a row has not ended."""
        return bool(self._rows)

    @property
    def is_engine_busy(self) -> bool:
        """Whether the engine holds a request."""
        return bool(self._in_engine)

    @property
    def is_making(self) -> bool:
        """Whether a row is with the engine, or waits for it."""
        return any(row.state == "making" for row in self._rows.values())

    @property
    def wants_rows(self) -> bool:
        """Whether the engine would take more than what waits for it."""
        return self._engine.num_wanted > len(self._waiting) + len(self._again)

    def add(self, row: ActiveRow) -> None:
        """Take a row in."""
        self._rows[row.id] = row
        self._waiting.extend((row, piece) for piece in row.pieces)

    def feed(self) -> None:
        """Give the engine as many requests as it wants. Rows that begin with them are reported before: it may die."""
        pieces = self._take_next(self._engine.num_wanted if self._waiting or self._again else 0)
        now_s, begun = time.monotonic(), list[str]()
        for row, _ in pieces:
            if row.begun_at_s is None:
                row.begun_at_s = now_s
                begun.append(row.id)
        if begun:
            self._report_begun(begun)
        for row, piece in pieces:
            request = piece.begin_attempt(row.request)
            self._in_engine[request.request_id] = row, piece
            self._pending.add(request.request_id, request.max_frames, now_s)
            self._engine.add_request(request)

    def step(self, timeout_s: float) -> None:
        """Take what the engine has finished, waiting at most `timeout_s`; end rows whose time is over.

        Raises EngineError when the engine is dead, or its device is.
        """
        for result in self._engine.step(timeout_s):
            self._receive(result)
        if (now_s := time.monotonic()) >= self._next_check_s:
            self._next_check_s = now_s + CHECK_TIME_EVERY_S
            self._end_overtime(now_s)
            self._fail_lost(now_s)

    def pause(self) -> None:
        """The engine's results cannot be taken now: nothing that it holds is late for that."""
        self._pending.excuse(time.monotonic())

    def retry(self, message: RetryPieces) -> None:
        """An attempt failed, and its pieces may be tried again; during a stop the row stays pending instead."""
        row = self._rows.get(message.row_id)
        if row is None:
            return
        if self._is_stopping:
            self._drop(row)
            return
        row.state = "making"
        row.failed_attempts.extend(message.failed_attempts)
        for number in message.pieces:
            row.pieces[number].result = None
            self._again.append((row, row.pieces[number]))

    def row_ended(self, row_id: str) -> None:
        """The row is recorded."""
        row = self._rows.pop(row_id, None)
        if row is not None:
            _end(row)

    def stop(self) -> None:
        """Begin no further row and no further attempt; rows that have begun may end."""
        self._is_stopping = True
        waiting = {row for row, _ in self._again}  # some may have ended meanwhile, over their time
        for row in [row for row in self._rows.values() if row.begun_at_s is None or row in waiting]:
            if row.state == "making":
                self._drop(row)

    def drop_unfinished(self) -> None:
        """Drop every row whose results are not complete; it stays pending."""
        for row in [row for row in self._rows.values() if row.state == "making"]:
            self._drop(row)

    def _take_next(self, count: int) -> list[tuple[ActiveRow, ActivePiece]]:
        """Take up to `count` pieces out of the queues, those that are tried again first."""
        pieces: list[tuple[ActiveRow, ActivePiece]] = []
        for queue in (self._again, self._waiting):
            while queue and len(pieces) < count:
                row, piece = queue.popleft()
                if row.state == "making":
                    pieces.append((row, piece))
        return pieces

    def _receive(self, result: SpeechResult) -> None:
        request_id = getattr(result, "request_id", None)
        found = self._in_engine.pop(request_id, None) if isinstance(request_id, str) else None
        if found is None or not isinstance(result, SpeechResult):
            log.warning("ignored a result for %r: it was not requested, or has one already", request_id)
            return
        row, piece = found
        self.num_results += 1
        self._pending.answer(piece.request.request_id, time.monotonic())
        if row.state != "making":
            return
        result = check_result(result)
        if is_device_broken(result):
            raise EngineError(f"its device is broken: {result.error}")
        if self._is_stopping and result.finish_reason == "cancelled":
            self._drop(row)
            return
        piece.result = result if self._trusts_buffers else own_arrays(result)
        is_answered = all(piece.result is not None for piece in row.pieces)
        if is_answered or (piece.is_last_attempt and result.finish_reason in _FAILED):
            self._complete(row)

    def _complete(self, row: ActiveRow) -> None:
        """Hand a row over to be finished, and have the engine end what else it has of it."""
        row.state = "finishing"
        self._abort(row)
        self._finish(row)

    def _end_overtime(self, now_s: float) -> None:
        limit_s = self._deadlines.row_s
        if limit_s is None:
            return
        begun_before_s = now_s - limit_s
        for row in [row for row in self._rows.values() if (row.begun_at_s or now_s) < begun_before_s]:
            if row.state == "making":
                self._fail(row, Failure("time_limit", f"It was not complete after {limit_s:g} s."))

    def _fail_lost(self, now_s: float) -> None:
        limit_s = self._pending.limit_s
        for request_id in self._pending.take_lost(now_s):
            row, piece = self._in_engine.get(request_id, (None, None))
            if row is not None and piece is not None and row.state == "making":
                message = f"The engine returned no result for it within {limit_s:g} s, and went on."
                self._fail(row, Failure("stalled", message), piece.number)

    def _fail(self, row: ActiveRow, failure: Failure, number: int | None = None) -> None:
        if number is None:
            number = next((piece.number for piece in row.pieces if piece.result is None), None)
        row.fail(failure, number)
        self._complete(row)

    def _drop(self, row: ActiveRow) -> None:
        del self._rows[row.id]
        self._abort(row)
        _end(row)

    def _abort(self, row: ActiveRow) -> None:
        for piece in row.pieces:
            if piece.request.request_id in self._in_engine:
                self._engine.abort_request(piece.request.request_id)


def _end(row: ActiveRow) -> None:
    """Nothing of it counts any more."""
    row.state = "ended"
    row.forget_results()


@dataclass(frozen=True, slots=True)
class _Pending:
    since_s: float
    max_frames: int
    num_answers: int  # of the engine, to other requests, until then


class PendingRequests:
    """What the engine holds, and how long it has owed an answer to each; times are seconds of one clock.

    Lost is a request without an answer for `answer_s`, and `answer_frame_s` more for each frame of the largest budget
    in the engine's hands. The time counts from the engine's last answer to anything, since it may do one request after
    another; or from the request, once it has answered twice as many later ones as it ever held.
    """

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._held: dict[str, _Pending] = {}
        self._num_answers = self._most_held = 0
        self._answered_at_s = 0.0

    def add(self, request_id: str, max_frames: int, now_s: float) -> None:
        """The engine gets a request."""
        self._held[request_id] = _Pending(now_s, max_frames, self._num_answers)
        self._most_held = max(self._most_held, len(self._held))

    def answer(self, request_id: str, now_s: float) -> None:
        """The engine has returned a result."""
        self._num_answers += self._held.pop(request_id, None) is not None
        self._answered_at_s = now_s

    def excuse(self, now_s: float) -> None:
        """The engine was not asked for results: none is late."""
        self._answered_at_s = now_s

    def take_lost(self, now_s: float) -> list[str]:
        """Return the requests that are lost now, and count them as answered."""
        if not self._held:
            return []
        limit_s = self.limit_s
        lost = [name for name, pending in self._held.items() if now_s - self._waits_since_s(pending) > limit_s]
        for name in lost:
            del self._held[name]
        return lost

    @property
    def limit_s(self) -> float:
        """How long a request may wait now."""
        budgets = (pending.max_frames for pending in self._held.values())
        return self._deadlines.answer_s + self._deadlines.answer_frame_s * max(budgets, default=0)

    def _waits_since_s(self, pending: _Pending) -> float:
        is_overtaken = self._num_answers - pending.num_answers > 2 * self._most_held
        return pending.since_s if is_overtaken else max(pending.since_s, self._answered_at_s)


def check_result(result: SpeechResult) -> SpeechResult:
    """Return the result if its fields have the types that the contract gives them, else an "error" that names one."""
    problem = _find_problem(result)
    if problem is None:
        return result
    return SpeechResult(
        request_id=result.request_id,
        audio=None,
        sample_rate=0,
        codes=None,
        num_frames=0,
        finish_reason="error",
        eos=False,
        reason="engine_error",
        error=f"The engine returned a result that does not keep to its contract: {problem}.",
    )


def own_arrays(result: SpeechResult) -> SpeechResult:
    """Return the result with arrays that an engine which uses its buffers again cannot change.

    What else it holds becomes plain too, so that it can travel; `metrics`, which no clip needs, are left behind.
    """
    return replace(
        result,
        audio=None if result.audio is None else result.audio.copy(),
        codes=None if result.codes is None else result.codes.copy(),
        effective={name: result.effective[name] for name in _EFFECTIVE if name in result.effective},
        metrics={},
    )


def _find_problem(result: Any) -> str | None:
    audio, codes = result.audio, result.codes
    if audio is not None and not (isinstance(audio, np.ndarray) and audio.dtype == np.float32):
        kind = audio.dtype if isinstance(audio, np.ndarray) else type(audio).__name__
        return f"audio is {kind}, not a float32 array"
    if codes is not None and not (
        isinstance(codes, np.ndarray) and codes.dtype.kind in "iu" and codes.shape[1:] == (NUM_CODEBOOKS,)
    ):
        return "codes are not an integer array [num_frames, 16]"
    if codes is not None and codes.size and not (codes.min() >= 0 and codes.max() <= _MAX_CODE):
        return f"codes are not all from 0 to {_MAX_CODE}"
    for name in ("sample_rate", "num_frames"):
        value = getattr(result, name)
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 0 <= value < 2**31:
            return f"{name} is {value!r}, not a whole number from 0 to 2147483647"
    if not isinstance(result.finish_reason, str):
        return f"finish_reason is {result.finish_reason!r}, not a string"
    if not isinstance(result.eos, bool | np.bool_):
        return f"eos is {result.eos!r}, not a bool"
    if not isinstance(result.effective, Mapping):
        return f"effective is {result.effective!r}, not a mapping"
    texts = {"reason": result.reason, "error": result.error}
    texts |= {f"effective[{name!r}]": result.effective.get(name) for name in _EFFECTIVE}
    for name, value in texts.items():
        if value is not None and not isinstance(value, str):
            return f"{name} is {value!r}, not a string or None"
    return None


def is_device_broken(result: SpeechResult) -> bool:
    """Whether an engine's error is its device's: after a device-side assert every later request would fail too."""
    return result.finish_reason == "error" and _DEVICE_IS_BROKEN.search(str(result.error or "")) is not None
