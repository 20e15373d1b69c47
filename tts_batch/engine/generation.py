"""One call of `generate`: a compute thread, what is in flight, and a bounded queue to the receiver.

Two threads meet here. The compute thread pulls requests, prepares, decodes, vocodes and puts results; the receiver's
thread takes them out. They share the queue, and under the lock the ids in flight and the ids to cancel. Every wait
has a deadline or looks at `_closing` again after POLL_S.
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from tts_batch.engine.code2wav import Vocoder
from tts_batch.engine.errors import EngineError
from tts_batch.engine.prepare import Preparer
from tts_batch.engine.request import SpeechRequest, SpeechResult
from tts_batch.engine.results import cancelled_result, error_result, failure_result, spoken_result
from tts_batch.engine.runner import Runner

logger = logging.getLogger(__name__)

POLL_S = 0.01
DEVICE_POLL_S = 0.001  # while only the device has something to do
JOIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Stages:
    """What an engine does to a request, one after another, and how long one unit of work may take."""

    preparer: Preparer
    runner: Runner
    code2wav: Vocoder
    stall_timeout_s: float


class Generation:
    """Runs requests through a runner. `results` may be iterated once; `cancel` may come from any thread."""

    def __init__(self, requests: Iterable[SpeechRequest | None], stages: Stages) -> None:
        self._requests = iter(requests)
        self._exhausted = False
        self._preparer, self._runner, self._code2wav = stages.preparer, stages.runner, stages.code2wav
        self._stall_timeout_s = stages.stall_timeout_s
        # A result, and whether it ends the request in flight (a duplicate's error does not).
        self._results: queue.Queue[tuple[SpeechResult, bool]] = queue.Queue(maxsize=2 * self._runner.max_num_seqs)
        self._lock = threading.Lock()
        self._in_flight: set[str] = set()
        self._cancelled: set[str] = set()
        self._closing = threading.Event()
        self._finished = threading.Event()  # set after the last result is put
        self._error: BaseException | None = None
        self._working: tuple[str, float] | None = None  # the unit of work in progress and when it began
        self._thread = threading.Thread(target=self._compute, name="tts-batch-compute", daemon=True)
        self._thread.start()

    # The receiver's side

    def results(self) -> Iterator[SpeechResult]:
        """Results in completion order. Raises EngineError when the compute thread fails or stalls."""
        try:
            while True:
                finished = self._finished.is_set()  # before looking: what is put later is not missed
                try:
                    result, ends = self._results.get(timeout=0 if finished else POLL_S)
                except queue.Empty:
                    if finished:
                        break
                    self._check_progress()
                else:
                    yield self._hand_over(result) if ends else result
            if self._error is not None:
                raise EngineError(f"the engine failed: {type(self._error).__name__}: {self._error}") from self._error
        finally:
            self.close()

    def cancel(self, request_id: str) -> None:
        """End a request in flight as "cancelled". One that has ended, or was never pulled, is left alone."""
        with self._lock:
            if request_id in self._in_flight:
                self._cancelled.add(request_id)

    def close(self) -> None:
        """Stop computing and drop what is in flight. `stopped` tells whether the compute thread ended in time."""
        self._closing.set()
        self._thread.join(JOIN_S)
        if not self.stopped:
            logger.error("the compute thread did not end within %.0f s of closing", JOIN_S)

    @property
    def stopped(self) -> bool:
        return not self._thread.is_alive()

    def _hand_over(self, result: SpeechResult) -> SpeechResult:
        with self._lock:
            self._in_flight.discard(result.request_id)
            if result.request_id not in self._cancelled:
                return result
            self._cancelled.discard(result.request_id)
        return cancelled_result(result.request_id)

    def _check_progress(self) -> None:
        working = self._working
        if working is None or time.monotonic() - working[1] <= self._stall_timeout_s:
            return
        frame = sys._current_frames().get(self._thread.ident or 0)
        stack = "".join(traceback.format_stack(frame)) if frame else "(none)"
        logger.error("the compute thread is stuck in %r:\n%s", working[0], stack)
        raise EngineError(f"the engine stalled: {working[0]!r} took more than {self._stall_timeout_s:g} s.")

    # The compute thread

    @torch.inference_mode()
    def _compute(self) -> None:
        try:
            while not self._closing.is_set():
                self._drop_cancelled()
                self._take_in()
                if self._runner.busy:
                    self._advance()
                self._deliver()
                if self._runner.busy:
                    continue
                if self._code2wav.busy:
                    self._closing.wait(DEVICE_POLL_S)
                elif self._exhausted:
                    break
                else:
                    self._closing.wait(POLL_S)
        except BaseException as error:
            self._error = error
        finally:
            self._runner.evict()
            self._code2wav.clear()
            self._finished.set()

    def _take_in(self) -> None:
        while self._runner.room > 0 and not self._exhausted and not self._closing.is_set():
            try:
                request = next(self._requests)
            except StopIteration:
                self._exhausted = True
                return
            if request is None:
                return
            self._admit(request)

    def _admit(self, request: SpeechRequest) -> None:
        with self._lock:
            duplicate = request.request_id in self._in_flight
            self._in_flight.add(request.request_id)
        if duplicate:
            message = f"a request with the id {request.request_id!r} is already in flight."
            self._put(error_result(request.request_id, "duplicate_id", message), ends=False)
            return
        try:
            with self._unit("prepare"):
                row = self._preparer.prepare(request)
        except Exception as error:
            self._put(failure_result(request.request_id, error))
        else:
            self._runner.add(row)

    def _advance(self) -> None:
        try:
            with self._unit("decode"):
                decoded = self._runner.step()
        except torch.OutOfMemoryError:
            self._lower_limit()
        else:
            for row in decoded:
                self._code2wav.submit(row)

    def _lower_limit(self) -> None:
        """Start again with half as many rows; a row that does not even fit alone fails."""
        rows = self._runner.evict()
        limit = self._runner.max_num_seqs
        if limit == 1:
            row = rows.pop(0)
            message = "the device has too little memory to decode this row, even alone."
            self._put(error_result(row.request.request_id, "out_of_memory", message))
        else:
            self._runner.max_num_seqs = limit // 2
            logger.warning("out of memory with up to %d rows; going on with %d", limit, limit // 2)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        for row in rows:
            if self._code2wav.drop(row.request.request_id):
                message = "the device ran out of memory when some of this row's audio was out already."
                self._put(error_result(row.request.request_id, "out_of_memory", message))
            else:
                self._runner.add(row)

    def _deliver(self) -> None:
        """Put what Code2Wav has finished; when nothing more is coming for now, have it start what it holds."""
        with self._unit("code2wav"):
            voiced = self._code2wav.poll(drain=not self._runner.busy)
        for clip in voiced:
            if clip.audio is None:
                message = "the device has too little memory to turn this row's codes into audio."
                self._put(error_result(clip.row.prepared.request.request_id, "out_of_memory", message))
            else:
                self._put(spoken_result(clip))

    def _drop_cancelled(self) -> None:
        with self._lock:
            cancelled = list(self._cancelled)
        for request_id in cancelled:
            # A row that is spoken chunk by chunk is in both.
            is_decoding, is_in_code2wav = self._runner.cancel(request_id), self._code2wav.drop(request_id)
            if is_decoding or is_in_code2wav:
                self._put(cancelled_result(request_id))

    def _put(self, result: SpeechResult, *, ends: bool = True) -> None:
        while not self._closing.is_set():
            try:
                self._results.put((result, ends), timeout=POLL_S)
            except queue.Full:
                continue
            return

    @contextmanager
    def _unit(self, name: str) -> Iterator[None]:
        """A unit of work that must end within the stall timeout."""
        self._working = (name, time.monotonic())
        try:
            yield
        finally:
            self._working = None
