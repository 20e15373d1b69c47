"""generate: an iterator of results over an engine, for scripts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from tts_batch.engine.errors import EngineError
from tts_batch.engine.request import Engine, SpeechRequest, SpeechResult

STEP_S = 1.0
ABORT_S = 30.0  # how long requests that were aborted may take to end


def generate(engine: Engine, requests: Iterable[SpeechRequest]) -> Iterator[SpeechResult]:
    """Results in completion order; requests are pulled as the engine wants them.

    The engine has no other caller meanwhile. Closing the iterator early, or an exception of `requests`, aborts what
    is in flight. Raises EngineError when the engine is dead, and DuplicateRequest.
    """
    source = iter(requests)
    in_flight: set[str] = set()
    is_exhausted = False
    try:
        while True:
            while not is_exhausted and (not in_flight or engine.num_wanted > 0):
                request = next(source, None)
                if request is None:
                    is_exhausted = True
                else:
                    engine.add_request(request)
                    in_flight.add(request.request_id)
            if not in_flight:
                return
            results = engine.step(STEP_S)
            in_flight.difference_update(result.request_id for result in results)
            yield from results
    except EngineError:
        raise
    except BaseException:  # of the requests, or the iterator was closed
        _abort(engine, in_flight)
        raise


def _abort(engine: Engine, in_flight: set[str]) -> None:
    """Abort requests and collect their results, so that the engine's next caller gets none of them."""
    for request_id in in_flight:
        engine.abort_request(request_id)
    deadline_s = time.monotonic() + ABORT_S
    while in_flight and time.monotonic() < deadline_s:
        in_flight.difference_update(result.request_id for result in engine.step(STEP_S))
