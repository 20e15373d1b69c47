"""One call of `generate`: a compute thread, what is in flight, and a bounded queue to the receiver.

Two threads meet here. The compute thread pulls requests, prepares, decodes, vocodes and puts results; the receiver's
thread takes them out. They share the queue, and under the lock its size, the ids in flight and the ids to cancel. Every
wait has a deadline or looks at `_closing` again after POLL_S.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

import torch

from tts_batch.engine.code2wav.utterance import Vocoder
from tts_batch.engine.errors import EngineError
from tts_batch.engine.kernels.backend import kernels_allowed
from tts_batch.engine.meter import Meter
from tts_batch.engine.prepare import Preparer
from tts_batch.engine.request import SpeechRequest, SpeechResult
from tts_batch.engine.results import cancelled_result, error_result, failure_result, spoken_result
from tts_batch.engine.row_limit import RowLimit
from tts_batch.engine.runner import Runner
from tts_batch.engine.watchdog import Unit, Watchdog, all_stacks

logger = logging.getLogger(__name__)

Done = TypeVar("Done")

BURST = 64  # requests prepared together at most: all their references are encoded in one unit of work
BURST_AHEAD = 32  # of those that will only wait: it takes less time than the frames that the device is busy with
TAKE_IN_S = 2.0  # after which a burst is the last before the stages have their turn again
POLL_S = 0.01
DEVICE_POLL_S = 0.001  # while only the device has something to do
JOIN_S = 30.0
MAX_QUEUED_SAMPLES = 2**28  # of clips that wait for the receiver: 1 GiB, three hours
NO_MEMORY_FOR_AUDIO = "the device has too little memory to turn this row's codes into audio."


@dataclass(slots=True)
class Stages:
    """What an engine does to a request, one after another, and how long anything may stand still."""

    preparer: Preparer
    runner: Runner
    code2wav: Vocoder
    stall_timeout_s: float
    kernels: bool = True  # whether Triton kernels may be used, or their torch twins only
    meter: Meter = field(default_factory=Meter)
    row_limit: RowLimit = field(init=False)

    def __post_init__(self) -> None:
        self.row_limit = RowLimit(self.runner)  # it outlives a generation, as the runner does


class Generation:
    """Runs requests through a runner. `results` may be iterated once; `cancel` may come from any thread."""

    def __init__(self, requests: Iterable[SpeechRequest | None], stages: Stages) -> None:
        self._requests = iter(requests)
        self._exhausted = False
        self._preparer, self._runner, self._code2wav = stages.preparer, stages.runner, stages.code2wav
        self._row_limit = stages.row_limit
        self._kernels = stages.kernels
        self._watchdog = Watchdog(stages.stall_timeout_s, stages.meter.host_s)
        # A result, and whether it ends the request in flight (a duplicate's error does not).
        self._results: queue.Queue[tuple[SpeechResult, bool]] = queue.Queue(maxsize=2 * self._runner.max_num_seqs)
        self._queued_samples = 0
        self._lock = threading.Lock()
        self._in_flight: set[str] = set()  # pulled, and not yet handed over
        self._cancelled: set[str] = set()
        self._closing = threading.Event()
        self._finished = threading.Event()  # set after the last result is put
        self._error: BaseException | None = None
        self._owed: set[str] = set()  # the compute thread's: pulled, and no result put
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
                    if (unit := self._watchdog.overdue) is not None:
                        yield from self._give_up(unit)
                else:
                    with self._lock:
                        self._queued_samples -= _num_samples(result)
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

    def _give_up(self, unit: Unit) -> Iterator[SpeechResult]:
        """The compute thread does not come back: end the request that it is stuck with, if it is one, and raise."""
        message = f"{unit.name!r} took more than {self._watchdog.timeout_s:g} s."
        headline = f"the compute thread is stuck: {message}"
        try:
            self._log_state(headline)
        except Exception:  # what is counted may change meanwhile, if that thread goes on after all
            logger.exception(headline)
        if unit.request_id is not None:
            yield self._hand_over(error_result(unit.request_id, "stalled", message))
        raise EngineError(f"the engine stalled: {message}")

    def _log_state(self, headline: str) -> None:
        rows = ", ".join(f"{row.request.request_id} {frames}" for row, frames in self._runner.progress())
        logger.error(
            "%s\n%d requests owed, %d results waiting for the receiver; in the runner, with their frames: %s; "
            "in Code2Wav: %s\n%s",
            headline, len(self._owed), self._results.qsize(), rows or "none",
            ", ".join(name for name, _ in self._code2wav.progress()) or "none", all_stacks(),
        )  # fmt: skip

    # The compute thread

    @torch.inference_mode()
    def _compute(self) -> None:
        try:
            with kernels_allowed(self._kernels):
                self._compute_until_done()
        except BaseException as error:
            self._error = error
        finally:
            try:
                self._runner.evict()
                self._code2wav.clear()
            except Exception as error:  # nothing to let go of on a device that is lost
                self._error = self._error or error
            self._finished.set()

    def _compute_until_done(self) -> None:
        while not self._closing.is_set():
            self._drop_cancelled()
            self._take_in()
            if self._runner.busy:
                self._advance()
            self._deliver()
            self._fail_what_is_stuck()
            if self._runner.busy:
                continue
            if self._code2wav.busy:
                self._closing.wait(DEVICE_POLL_S)
            elif self._exhausted and not self._owed:
                break
            else:
                self._closing.wait(POLL_S)

    def _take_in(self) -> None:
        """Fill the runner with the requests that are ready, burst by burst; slow ones do not hold up the others.

        While all its places are taken, a burst at a time is prepared ahead, between the frames of those that decode.
        """
        ready = self._ready_requests()
        until_s = time.monotonic() + TAKE_IN_S
        while True:
            is_hungry = self._runner.is_hungry
            burst = list(islice(ready, max(0, min(self._runner.room, BURST if is_hungry else BURST_AHEAD))))
            if not burst:
                return
            self._preparer.load_ahead(burst)
            for request in burst:
                if self._closing.is_set():
                    return
                with self._watchdog.unit("load", request.request_id):
                    self._preparer.load(request)
            with self._watchdog.unit("encode references"):
                self._preparer.encode_loaded()
            for request in burst:
                self._prepare(request)
            self._run(self._runner.start_waiting)  # the device reads these prompts while the host prepares the next
            if not is_hungry or time.monotonic() > until_s:
                return

    def _ready_requests(self) -> Iterator[SpeechRequest]:
        """Requests pulled until none is ready. What comes out here is owed a result."""
        while not self._exhausted and not self._closing.is_set():
            try:
                request = next(self._requests)
            except StopIteration:
                self._exhausted = True
                return
            if request is None:
                return
            with self._lock:
                duplicate = request.request_id in self._in_flight
                self._in_flight.add(request.request_id)
            if duplicate:
                message = f"a request with the id {request.request_id!r} is already in flight."
                self._put(error_result(request.request_id, "duplicate_id", message), ends=False)
            else:
                self._owed.add(request.request_id)
                yield request

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
            request_id = row.prepared.request.request_id
            if row.finish_reason == "error":
                self._code2wav.drop(request_id)  # where chunks of it may be
                message = f"the network's state was no longer finite after {len(row.codes)} frames."
                self._put(error_result(request_id, "non_finite", message))
                continue
            try:
                self._code2wav.submit(row)
            except torch.OutOfMemoryError:
                self._code2wav.drop(request_id)
                self._put(error_result(request_id, "out_of_memory", NO_MEMORY_FOR_AUDIO))

    def _run(self, work: Callable[[], Done]) -> Done | None:
        """Let the runner work; where its memory runs out it starts again, smaller."""
        with suppress(torch.OutOfMemoryError), self._watchdog.unit("decode"):
            return work()
        self._lower_limit()  # where the error is gone, and with it the tensors that it kept
        return None

    def _lower_limit(self) -> None:
        """Start again with half as many rows; a row that does not even fit alone fails."""
        rows = self._runner.evict()
        if self._runner.max_num_seqs == 1:
            row = rows.pop(0)
            self._code2wav.drop(row.request.request_id)
            message = "the device has too little memory to decode this row, even alone."
            self._put(error_result(row.request.request_id, "out_of_memory", message))
        else:
            self._row_limit.lower()
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
        with self._watchdog.unit("code2wav"):
            voiced = self._code2wav.poll(drain=not self._runner.busy)
        for clip in voiced:
            if clip.audio is None:
                self._put(error_result(clip.row.prepared.request.request_id, "out_of_memory", NO_MEMORY_FOR_AUDIO))
            else:
                self._put(spoken_result(clip))

    def _drop_cancelled(self) -> None:
        with self._lock:
            cancelled = list(self._cancelled)
        for request_id in cancelled:
            if self._drop(request_id):
                self._put(cancelled_result(request_id))

    def _fail_what_is_stuck(self) -> None:
        if not self._watchdog.wants_to_look:
            return
        decoding = [(row.request.request_id, frames) for row, frames in self._runner.progress()]
        stuck = self._watchdog.look(self._owed, decoding, self._code2wav.progress())
        if stuck:
            self._log_state(f"no progress for {self._watchdog.timeout_s:g} s: {', '.join(stuck)}")
        for request_id in stuck:
            self._drop(request_id)
            message = f"this row made no progress for {self._watchdog.timeout_s:g} s."
            self._put(error_result(request_id, "stalled", message))

    def _drop(self, request_id: str) -> bool:
        """Take a request out of the stages; a row that is spoken chunk by chunk is in both."""
        is_decoding, is_in_code2wav = self._runner.cancel(request_id), self._code2wav.drop(request_id)
        return is_decoding or is_in_code2wav

    def _put(self, result: SpeechResult, *, ends: bool = True) -> None:
        """Hand a result to the receiver, who may be slow. A request that has ended does not end again."""
        if ends and result.request_id not in self._owed:
            logger.error("a second result of %r, %s, is dropped", result.request_id, result.finish_reason)
            return
        self._owed -= {result.request_id} if ends else set()
        with self._watchdog.excused():
            while not self._closing.is_set():
                if self._queued_samples + _num_samples(result) > MAX_QUEUED_SAMPLES and not self._results.empty():
                    self._closing.wait(POLL_S)
                    continue
                try:
                    self._results.put((result, ends), timeout=POLL_S)
                except queue.Full:
                    continue
                with self._lock:
                    self._queued_samples += _num_samples(result)
                return


def _num_samples(result: SpeechResult) -> int:
    return 0 if result.audio is None else len(result.audio)
