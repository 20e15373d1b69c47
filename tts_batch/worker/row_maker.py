"""RowMaker: rows through one engine. It feeds requests, takes results, counts attempts, and keeps deadlines.

Used from one thread, by a worker as by a Synthesizer; they differ in how a row whose results are complete is finished.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable

from tts_batch.engine.errors import EngineError
from tts_batch.engine.request import Engine, SpeechResult
from tts_batch.ipc.messages import ClipTask, Deadlines, RetryPieces
from tts_batch.records import Failure
from tts_batch.worker.answers import PendingRequests
from tts_batch.worker.engine_results import check_result, is_device_broken, own_arrays
from tts_batch.worker.rows import ActivePiece, ActiveRow

log = logging.getLogger(__name__)

CHECK_TIME_EVERY_S = 0.1
_FAILED = ("length", "loop", "error", "cancelled")


class RowMaker:
    """Every row that is added is given to `finish` whenever an attempt at it is complete, until `row_ended`.

    What `finish` finds comes back by `retry` or `row_ended`. A row that is dropped by a stop is given to nobody.
    """

    def __init__(
        self,
        engine: Engine,
        finish: Callable[[ClipTask], None],
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
        self._waiting: deque[ActivePiece] = deque()
        self._again: deque[ActivePiece] = deque()  # to be tried again; these go first
        self._in_engine: dict[str, ActivePiece] = {}
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
        return any(not row.is_finishing for row in self._rows.values())

    @property
    def wants_rows(self) -> bool:
        """Whether the engine would take more than what waits for it."""
        return self._engine.num_wanted > len(self._waiting) + len(self._again)

    def add(self, row: ActiveRow) -> None:
        """Take a row in."""
        self._rows[row.id] = row
        self._waiting.extend(row.pieces)

    def feed(self) -> None:
        """Give the engine as many requests as it wants. Rows that begin with them are reported before: it may die."""
        pieces = self._take_next(self._engine.num_wanted if self._waiting or self._again else 0)
        now_s, begun = time.monotonic(), list[str]()
        for piece in pieces:
            if piece.row.begun_at_s is None:
                piece.row.begun_at_s = now_s
                begun.append(piece.row.id)
        if begun:
            self._report_begun(begun)
        for piece in pieces:
            request = piece.begin_attempt()
            self._in_engine[request.request_id] = piece
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
        row.is_finishing = False
        row.failed_attempts.extend(message.failed_attempts)
        for number in message.pieces:
            row.pieces[number].result = None
            self._again.append(row.pieces[number])

    def row_ended(self, row_id: str) -> None:
        """The row is recorded."""
        row = self._rows.pop(row_id, None)
        if row is not None:
            row.end()

    def stop(self) -> None:
        """Begin no further row and no further attempt; rows that have begun may end."""
        self._is_stopping = True
        waiting = {piece.row for piece in self._again}  # some may have ended meanwhile, over their time
        for row in [row for row in self._rows.values() if row.begun_at_s is None or row in waiting]:
            if not row.is_finishing:
                self._drop(row)

    def drop_unfinished(self) -> None:
        """Drop every row whose results are not complete; it stays pending."""
        for row in [row for row in self._rows.values() if not row.is_finishing]:
            self._drop(row)

    def _take_next(self, count: int) -> list[ActivePiece]:
        """Take up to `count` pieces out of the queues, those that are tried again first."""
        pieces: list[ActivePiece] = []
        for queue in (self._again, self._waiting):
            while queue and len(pieces) < count:
                piece = queue.popleft()
                if not (piece.row.has_ended or piece.row.is_finishing):
                    pieces.append(piece)
        return pieces

    def _receive(self, result: SpeechResult) -> None:
        request_id = getattr(result, "request_id", None)
        piece = self._in_engine.pop(request_id, None) if isinstance(request_id, str) else None
        if piece is None or not isinstance(result, SpeechResult):
            log.warning("ignored a result for %r: it was not requested, or has one already", request_id)
            return
        self.num_results += 1
        self._pending.answer(piece.task.request_id, time.monotonic())
        row = piece.row
        if row.has_ended or row.is_finishing:
            return
        result = check_result(result)
        if is_device_broken(result):
            raise EngineError(f"its device is broken: {result.error}")
        if self._is_stopping and result.finish_reason == "cancelled":
            self._drop(row)
            return
        piece.result = result if self._trusts_buffers else own_arrays(result)
        if row.is_answered or (piece.is_last_attempt and result.finish_reason in _FAILED):
            self._complete(row, row.clip_task())

    def _complete(self, row: ActiveRow, task: ClipTask) -> None:
        """Hand a row over to be finished, and have the engine end what else it has of it."""
        row.is_finishing = True
        self._abort(row)
        self._finish(task)

    def _end_overtime(self, now_s: float) -> None:
        limit_s = self._deadlines.row_s
        if limit_s is None:
            return
        begun_before_s = now_s - limit_s
        for row in [row for row in self._rows.values() if (row.begun_at_s or now_s) < begun_before_s]:
            if not row.is_finishing:
                self._fail(row, Failure("time_limit", f"It was not complete after {limit_s:g} s."))

    def _fail_lost(self, now_s: float) -> None:
        limit_s = self._pending.limit_s
        for request_id in self._pending.take_lost(now_s):
            piece = self._in_engine.get(request_id)
            if piece is not None and not (piece.row.has_ended or piece.row.is_finishing):
                message = f"The engine returned no result for it within {limit_s:g} s, and went on."
                self._fail(piece.row, Failure("stalled", message), piece.number)

    def _fail(self, row: ActiveRow, failure: Failure, number: int | None = None) -> None:
        if number is None:
            number = next((piece.number for piece in row.pieces if piece.result is None), None)
        self._complete(row, row.clip_task(failure, number))

    def _drop(self, row: ActiveRow) -> None:
        del self._rows[row.id]
        self._abort(row)
        row.end()

    def _abort(self, row: ActiveRow) -> None:
        for piece in row.pieces:
            if piece.task.request_id in self._in_engine:
                self._engine.abort_request(piece.task.request_id)
