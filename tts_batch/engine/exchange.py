"""The state that an engine's caller and its compute thread share: requests, results, and what is in flight.

The caller's thread uses `add`, `abort` and `collect`, the compute thread `take`, `take_aborted`, `put` and
`wait_for_work`. Neither polls: both wait on one condition.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Set
from itertools import islice

from tts_batch.engine.errors import DuplicateRequest, EngineError
from tts_batch.engine.request import SpeechRequest, SpeechResult
from tts_batch.engine.results import cancelled_result

logger = logging.getLogger(__name__)

MAX_SAMPLES = 2**28  # of clips that wait for the caller: 1 GiB, three hours
GATHER_S = 0.01  # how long an idle engine waits for the caller to add more, until its next `collect`


class Exchange:
    """Keeps each request in one of three states: waiting to be taken, running, or with a result to collect."""

    def __init__(self, max_results: int, max_samples: int = MAX_SAMPLES, *, aborts_at_once: bool = False) -> None:
        """`max_results` and `max_samples` bound the results that wait for the caller; one may always wait.

        `aborts_at_once`: requests that were taken end when they are aborted, and their results are to be dropped.
        """
        self._max_results = max_results
        self._max_samples = max_samples
        self._aborts_at_once = aborts_at_once
        self._changed = threading.Condition()  # guards all fields below
        self._inbox: OrderedDict[str, SpeechRequest] = OrderedDict()
        self._owed: set[str] = set()  # taken, and no result put
        self._results: list[SpeechResult] = []
        self._num_samples = 0  # in them
        self._in_flight: set[str] = set()  # added, and not collected
        self._cancelled: set[str] = set()  # in flight, and to be collected as cancelled
        self._aborted: set[str] = set()  # of these, the ones that `take_aborted` has not returned
        self._more_may_come = False  # the caller has added a request and not collected since
        self._wakes_caller = False
        self._is_idle = False
        self._error: EngineError | None = None  # why it is closed

    # The caller's thread

    @property
    def num_waiting(self) -> int:
        """Requests that wait to be taken."""
        return len(self._inbox)

    @property
    def num_in_flight(self) -> int:
        """Requests that were added and not collected."""
        return len(self._in_flight)

    def add(self, request: SpeechRequest) -> None:
        """Queue a request. Raises DuplicateRequest for an id in flight, EngineError when closed."""
        with self._changed:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if request.request_id in self._in_flight:
                raise DuplicateRequest(f"a request with the id {request.request_id!r} is already in flight.")
            self._in_flight.add(request.request_id)
            self._inbox[request.request_id] = request
            self._more_may_come = True
            if len(self._inbox) == 1:
                self._changed.notify_all()

    def abort(self, request_id: str) -> None:
        """End a request in flight as "cancelled", at once if it was not taken yet."""
        with self._changed:
            if request_id not in self._in_flight or request_id in self._cancelled:
                return
            self._cancelled.add(request_id)
            if self._inbox.pop(request_id, None) is not None:
                self._append(cancelled_result(request_id))
            elif request_id in self._owed and self._aborts_at_once:
                self._owed.remove(request_id)
                self._append(cancelled_result(request_id))
            elif request_id in self._owed:
                self._aborted.add(request_id)
            self._changed.notify_all()

    def collect(self, timeout_s: float) -> list[SpeechResult] | None:
        """The results that wait: some, or none after `wake_caller`. None if nothing came in `timeout_s`.

        Raises EngineError when it is closed and all results were collected.
        """
        with self._changed:
            if self._more_may_come:
                self._more_may_come = False
                self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._results or self._wakes_caller or self._error, timeout_s):
                return None
            if self._error is not None and not self._results:
                raise self._error.with_traceback(None)
            self._wakes_caller = False
            results, self._results, self._num_samples = self._results, [], 0
            if results:
                self._changed.notify_all()
            return [self._hand_over(result) for result in results]

    def wait_until_idle(self, timeout_s: float) -> None:
        """Wait until the other thread waits for work. Raises EngineError after `timeout_s`, and when closed."""
        with self._changed:
            is_idle = self._changed.wait_for(lambda: self._is_idle or self._error, timeout_s)
            if self._error is not None:
                raise self._error.with_traceback(None)
            if not is_idle:
                raise EngineError(f"the engine did not become idle within {timeout_s:g} s.")

    # The thread that computes

    @property
    def owed(self) -> Set[str]:
        """The running requests: taken, without a result."""
        return self._owed

    def next_requests(self, count: int) -> list[SpeechRequest]:
        """The first requests that wait to be taken, `count` at most."""
        if not self._inbox:
            return []
        with self._changed:
            return list(islice(self._inbox.values(), count))

    def take(self, count: int) -> list[SpeechRequest]:
        """The next requests, `count` at most. Each is owed a result."""
        if not self._inbox:
            return []
        with self._changed:
            taken = [self._inbox.popitem(last=False)[1] for _ in range(min(count, len(self._inbox)))]
            self._owed.update(request.request_id for request in taken)
            return taken

    def take_aborted(self) -> list[str]:
        """The requests that were aborted since the last call and are owed a result."""
        if not self._aborted:
            return []
        with self._changed:
            aborted = [request_id for request_id in self._aborted if request_id in self._owed]
            self._aborted.clear()
            return aborted

    def put(self, results: Iterable[SpeechResult]) -> None:
        """Queue results for the caller, and block while it is full. A second result of a request is dropped."""
        with self._changed:
            for result in results:
                if result.request_id not in self._owed:
                    logger.error("a second result of %r, %s, is dropped", result.request_id, result.finish_reason)
                    continue
                self._owed.remove(result.request_id)
                if self._is_full(result):
                    self._changed.notify_all()
                    self._changed.wait_for(lambda result=result: self._error or not self._is_full(result))
                self._append(result)
            self._changed.notify_all()

    def wake_caller(self) -> None:
        """End the caller's current or next `collect`, even without results."""
        with self._changed:
            self._wakes_caller = True
            self._changed.notify_all()

    def wait_for_work(self, timeout_s: float | None) -> None:
        """Wait for a request or an abort, at most `timeout_s`, then shortly for further requests that come with it."""
        with self._changed:
            self._is_idle = not self._owed
            if self._is_idle:
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._inbox or self._aborted or self._error, timeout_s)
            if self._inbox:
                self._changed.wait_for(lambda: not self._more_may_come or self._error, GATHER_S)
            self._is_idle = False

    # Either thread

    @property
    def is_closed(self) -> bool:
        return self._error is not None

    def close(self, error: EngineError | None = None) -> None:
        """End all waits, and reject requests with `error`; the first `error` given is kept."""
        with self._changed:
            self._error = self._error or error or EngineError("this engine is closed.")
            self._changed.notify_all()

    def _append(self, result: SpeechResult) -> None:
        self._results.append(result)
        self._num_samples += _num_samples(result)

    def _is_full(self, result: SpeechResult) -> bool:
        is_over = self._num_samples + _num_samples(result) > self._max_samples
        return bool(self._results) and (is_over or len(self._results) >= self._max_results)

    def _hand_over(self, result: SpeechResult) -> SpeechResult:
        request_id = result.request_id
        self._in_flight.discard(request_id)
        self._aborted.discard(request_id)
        if request_id not in self._cancelled:
            return result
        self._cancelled.discard(request_id)
        return cancelled_result(request_id)


def _num_samples(result: SpeechResult) -> int:
    return 0 if result.audio is None else len(result.audio)
