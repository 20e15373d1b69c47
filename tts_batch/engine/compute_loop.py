"""The compute thread of the native engine: it prepares and decodes requests, makes audio, and detects stalls.

It lives as long as the engine. Requests and results pass through an Exchange; the public methods are
those of the Engine contract, for the one thread that calls the engine.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from tts_batch.engine.code2wav.code2wav import NO_MEMORY_FOR_AUDIO, Code2Wav
from tts_batch.engine.errors import EngineError
from tts_batch.engine.exchange import MAX_SAMPLES, Exchange
from tts_batch.engine.kernels.backend import kernels_allowed
from tts_batch.engine.memory_errors import is_out_of_memory, suppress_out_of_memory
from tts_batch.engine.meter import Meter, Reading
from tts_batch.engine.prepare import Preparer
from tts_batch.engine.request import SpeechRequest, SpeechResult
from tts_batch.engine.results import cancelled_result, error_result, failure_result
from tts_batch.engine.row_limit import RowLimit
from tts_batch.engine.runner import Runner
from tts_batch.engine.sizing import Sizes
from tts_batch.engine.watchdog import LOOKS_PER_TIMEOUT, Unit, Watchdog, all_stacks

logger = logging.getLogger(__name__)

Done = TypeVar("Done")

BURST = 64  # requests prepared together at most: all their references are encoded in one unit of work
BURST_AHEAD = 32  # of those that will only wait: it takes less time than the frames that the device is busy with
LOAD_AHEAD = 128  # requests whose references are loaded before their turn
TAKE_IN_S = 2.0  # after which a burst is the last before the stages have their turn again
DEVICE_POLL_S = 0.001  # while only the device has something to do
JOIN_S = 30.0


@dataclass(slots=True)
class Stages:
    """The stages of an engine, in order, and their stall timeout."""

    preparer: Preparer
    runner: Runner
    code2wav: Code2Wav
    stall_timeout_s: float
    kernels: bool = True  # whether Triton kernels may be used, or their torch twins only
    max_waiting_samples: int = MAX_SAMPLES  # of clips that wait for the caller
    meter: Meter = field(default_factory=Meter)
    sizes: Sizes | None = None  # what was chosen for the device's memory


class ComputeLoop:
    """Runs requests through the stages on a thread of its own, from when it is made until `close`."""

    def __init__(self, stages: Stages) -> None:
        self._preparer, self._runner, self._code2wav = stages.preparer, stages.runner, stages.code2wav
        self._row_limit = RowLimit(self._runner)
        self._kernels = stages.kernels
        self._meter = stages.meter
        self._watchdog = Watchdog(stages.stall_timeout_s, stages.meter.host_s)
        self._look_s = stages.stall_timeout_s / LOOKS_PER_TIMEOUT
        self._exchange = Exchange(2 * self._runner.max_num_seqs, stages.max_waiting_samples)
        self._num_preparing = 0  # taken, and not yet in the runner
        self._was_full = False
        self._thread = threading.Thread(target=self._compute, name="tts-batch-compute", daemon=True)
        self._thread.start()

    # Called by the caller's thread

    @property
    def num_wanted(self) -> int:
        """How many more requests the runner has room for; 0 when the thread has ended."""
        if self._exchange.is_closed:
            return 0
        return max(0, self._runner.room - self._exchange.num_waiting - self._num_preparing)

    def add_request(self, request: SpeechRequest) -> None:
        """Raises DuplicateRequest for an id in flight, and EngineError when the engine is dead."""
        self._exchange.add(request)

    def abort_request(self, request_id: str) -> None:
        """End a request in flight as "cancelled"; any other is left alone."""
        self._exchange.abort(request_id)

    def step(self, timeout_s: float) -> list[SpeechResult]:
        """What has ended since; after at most `timeout_s`, and at once when there is room for requests again.

        Raises EngineError when the compute thread failed or is stuck, once the results that it left are returned.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            left_s = deadline_s - time.monotonic()
            results = self._exchange.collect(max(0.0, min(left_s, self._look_s)))
            if results:
                return results
            if (unit := self._watchdog.overdue) is not None:
                return self._end_stalled(unit)
            if results is not None or left_s <= self._look_s:
                return []

    def read_meter(self) -> Reading:
        """The meter's totals, once idle. Raises EngineError while requests are in flight, or when dead."""
        if self._exchange.num_in_flight and not self._exchange.is_closed:
            raise EngineError(f"{self._exchange.num_in_flight} requests are in flight; read the meter when all ended.")
        self._exchange.wait_until_idle(self._watchdog.timeout_s)
        return self._meter.read()

    def close(self) -> None:
        """Stop computing and drop what is in flight. `is_alive` says whether the thread did not end in time."""
        self._exchange.close()
        if threading.current_thread() is not self._thread:  # the engine may be garbage-collected on that thread
            self._thread.join(JOIN_S)
        if self.is_alive:
            logger.error("the compute thread did not end within %.0f s of closing", JOIN_S)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _end_stalled(self, unit: Unit) -> list[SpeechResult]:
        """The compute thread is stuck in `unit`: end the unit's request as stalled, and close the engine."""
        message = f"{unit.name!r} took more than {self._watchdog.timeout_s:g} s"
        headline = f"the compute thread is stuck: {message}"
        try:
            self._log_state(headline)
        except Exception:  # the thread may resume and change the collections meanwhile
            logger.exception(headline)
        if unit.request_id is not None:
            self._exchange.put([error_result(unit.request_id, "stalled", f"{message}.")])
        results = self._exchange.collect(0.0) or []
        self._exchange.close(EngineError(f"the engine stalled: {message}."))
        return results

    def _log_state(self, headline: str) -> None:
        rows = ", ".join(f"{row.request_id} {frames}" for row, frames in self._runner.progress())
        logger.error(
            "%s\n%d requests in flight; in the runner, with their frames: %s; in Code2Wav: %s\n%s",
            headline, self._exchange.num_in_flight, rows or "none",
            ", ".join(name for name, _ in self._code2wav.progress()) or "none", all_stacks(),
        )  # fmt: skip

    # Called by the compute thread

    @torch.inference_mode()
    def _compute(self) -> None:
        try:
            with kernels_allowed(self._kernels):
                self._compute_until_closed()
        except BaseException as error:
            self._fail(error)
        finally:
            try:
                self._runner.evict()
                self._code2wav.clear()
            except Exception as error:  # nothing can be freed on a lost device
                self._fail(error)

    def _compute_until_closed(self) -> None:
        while not self._exchange.is_closed:
            self._drop_aborted()
            self._take_in()
            if self._runner.busy:
                self._advance()
            self._deliver()
            self._fail_stalled()
            self._wake_caller_if_free()
            if self._runner.busy:
                continue
            if self._code2wav.busy:
                self._exchange.wait_for_work(DEVICE_POLL_S)
            else:
                self._exchange.wait_for_work(self._look_s if self._exchange.owed else None)

    def _fail(self, error: BaseException) -> None:
        reason = f"{type(error).__name__}: {error}".rstrip(".")
        failure = EngineError(f"the engine failed: {reason}.")
        failure.__cause__ = error
        self._exchange.close(failure)

    def _wake_caller_if_free(self) -> None:
        """Wake a caller that waits for results when the engine wants requests again."""
        is_full = self.num_wanted == 0
        if self._was_full and not is_full:
            self._exchange.wake_caller()
        self._was_full = is_full

    def _take_in(self) -> None:
        """Fill the runner with the requests that are ready, burst by burst; slow ones do not hold up the others.

        While no slot is free, one burst at a time is prepared ahead, between decoded frames.
        """
        until_s = time.monotonic() + TAKE_IN_S
        while True:
            has_free_slots = self._runner.has_free_slots
            self._preparer.load_ahead(self._exchange.next_requests(LOAD_AHEAD))
            burst = self._take(max(0, min(self._runner.room, BURST if has_free_slots else BURST_AHEAD)))
            if not burst:
                return
            for request in burst:
                if self._exchange.is_closed:
                    return
                with self._watchdog.unit("load", request.request_id):
                    self._preparer.load(request)
            with self._watchdog.unit("encode references"):
                self._preparer.encode_loaded()
            for request in burst:
                self._prepare(request)
                self._num_preparing -= 1
            self._run(self._runner.start_waiting)  # the device reads these prompts while the host prepares the next
            if not has_free_slots or time.monotonic() > until_s:
                return

    def _take(self, count: int) -> list[SpeechRequest]:
        # Counted before they leave the exchange, so that `num_wanted` never counts too much room.
        self._num_preparing = count = min(count, self._exchange.num_waiting)
        burst = self._exchange.take(count)
        self._num_preparing = len(burst)
        return burst

    def _prepare(self, request: SpeechRequest) -> None:
        try:
            with self._watchdog.unit("prepare", request.request_id):
                self._runner.add(self._preparer.prepare(request))
        except Exception as error:
            self._put(failure_result(request.request_id, error))

    def _advance(self) -> None:
        decoded = self._run(self._runner.step) or ()
        self._row_limit.note_ended(len(decoded))
        for row in decoded:
            request_id = row.request_id
            if row.finish_reason == "error":
                self._code2wav.drop(request_id)  # which may hold chunks of it
                message = f"the network's state was no longer finite after {len(row.codes)} frames."
                self._put(error_result(request_id, "non_finite", message))
                continue
            try:
                self._code2wav.submit(row)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                self._code2wav.drop(request_id)
                self._put(error_result(request_id, "out_of_memory", NO_MEMORY_FOR_AUDIO))

    def _run(self, work: Callable[[], Done]) -> Done | None:
        """Let the runner work; where its memory runs out it starts again, smaller."""
        with suppress_out_of_memory(), self._watchdog.unit("decode"):
            return work()
        self._lower_limit()  # where the error is gone, and with it the tensors that it kept
        return None

    def _lower_limit(self) -> None:
        """Halve the limit and restart all rows; a row that does not fit alone fails."""
        rows = self._runner.evict()
        if self._runner.max_num_seqs == 1:
            row = rows.pop(0)
            self._code2wav.drop(row.request_id)
            message = "the device has too little memory to decode this row, even alone."
            self._put(error_result(row.request_id, "out_of_memory", message))
        else:
            self._row_limit.lower()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        for row in rows:
            if self._code2wav.drop(row.request_id):
                message = "the device ran out of memory after part of this row's audio was sent."
                self._put(error_result(row.request_id, "out_of_memory", message))
            else:
                self._runner.add(row)

    def _deliver(self) -> None:
        """Put the results of Code2Wav; when the runner is idle, have it start everything."""
        with self._watchdog.unit("code2wav"):
            results = self._code2wav.poll(drain=not self._runner.busy)
        if results:
            self._put(*results)

    def _drop_aborted(self) -> None:
        for request_id in self._exchange.take_aborted():
            self._drop(request_id)
            self._put(cancelled_result(request_id))

    def _fail_stalled(self) -> None:
        if not self._watchdog.wants_to_look:
            return
        decoding = [(row.request_id, frames) for row, frames in self._runner.progress()]
        stuck = self._watchdog.look(self._exchange.owed, decoding, self._code2wav.progress())
        if stuck:
            self._log_state(f"no progress for {self._watchdog.timeout_s:g} s: {', '.join(stuck)}")
        for request_id in stuck:
            self._drop(request_id)
            message = f"this row made no progress for {self._watchdog.timeout_s:g} s."
            self._put(error_result(request_id, "stalled", message))

    def _drop(self, request_id: str) -> None:
        """Remove a request from the stages; a streamed one is in both."""
        self._runner.cancel(request_id)
        self._code2wav.drop(request_id)

    def _put(self, *results: SpeechResult) -> None:
        """Hand results to the caller, which may block; that time does not count as a stall."""
        with self._watchdog.excused():
            self._exchange.put(results)
