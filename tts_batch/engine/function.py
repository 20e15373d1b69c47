"""FunctionEngine: another TTS model as an engine, from a function that makes clips of requests.

    def speak(requests: list[SpeechRequest]) -> list[tuple[audio, sample_rate]]      a clip for each, in their order
    def speak(request: SpeechRequest) -> tuple[audio, sample_rate]                    one at a time

`audio` is mono [samples], floats in -1 .. 1, array-like; `sample_rate` is in Hz. It is the
name of the one parameter, `requests` or `request`, that distinguishes the two.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts_batch.engine.errors import EngineConfigError, EngineError
from tts_batch.engine.exchange import Exchange
from tts_batch.engine.request import SAMPLE_RATE_HZ, SpeechRequest, SpeechResult
from tts_batch.engine.results import error_result, failure_result

logger = logging.getLogger(__name__)

DEFAULT_BATCH_SIZE = 16
JOIN_S = 30.0


class FunctionEngine:
    """An Engine that calls a function on a thread of its own, in batches of waiting requests.

    What the function raises ends the requests that it was called with: as the `reason` and `message` of the exception,
    if it has them (errors.RowError), else as an engine_error. A request that is aborted ends at once, and what the
    function makes of it is dropped. Frames and codes are not counted: results have `num_frames` 0.
    """

    sample_rate = SAMPLE_RATE_HZ  # of results without audio; each clip has its own

    def __init__(
        self, speak: Callable[..., Any], batch_size: int | None = None, info: Mapping[str, str] | None = None
    ) -> None:
        """`batch_size`: most requests of one call (of one request, it is 1). `info`: what to record of the model.

        Raises EngineConfigError for a function of other parameters.
        """
        name = parameter_name(speak)
        if name is None:
            raise EngineConfigError(f"{_name_of(speak)} must have one parameter, called `requests` or `request`.")
        self._speak = speak
        self._takes_batch = name == "requests"
        self._batch_size = max(1, batch_size or DEFAULT_BATCH_SIZE) if self._takes_batch else 1
        self.info = {"runner": "function", "function": _name_of(speak), **(info or {})}
        self._exchange = Exchange(4 * self._batch_size, aborts_at_once=True)
        self._thread = threading.Thread(target=self._compute, name="tts-batch-function", daemon=True)
        self._thread.start()

    @property
    def num_wanted(self) -> int:
        """Two batches less the requests in flight; 0 when it is dead or closed."""
        if self._exchange.is_closed:
            return 0
        return max(0, 2 * self._batch_size - self._exchange.num_waiting - len(self._exchange.owed))

    def add_request(self, request: SpeechRequest) -> None:
        """Take a request in. Raises DuplicateRequest for an id in flight, EngineError when the engine is dead."""
        self._exchange.add(request)

    def abort_request(self, request_id: str) -> None:
        """End a request in flight as "cancelled" at once; any other is left alone."""
        self._exchange.abort(request_id)

    def step(self, timeout_s: float) -> list[SpeechResult]:
        """What has ended since the last call, after at most `timeout_s`. Raises EngineError when dead or closed."""
        return self._exchange.collect(timeout_s) or []

    def close(self) -> None:
        """Stop calling the function, and wait for the current call, at most JOIN_S."""
        self._exchange.close()
        self._thread.join(JOIN_S)
        if self._thread.is_alive():
            logger.error("%s did not return within %.0f s of closing", self.info["function"], JOIN_S)

    def _compute(self) -> None:
        try:
            while not self._exchange.is_closed:
                batch = self._exchange.take(self._batch_size)
                if batch:
                    results = self._make(batch)
                    self._exchange.put(result for result in results if result.request_id in self._exchange.owed)
                else:
                    self._exchange.wait_for_work(None)
        except BaseException as error:  # a function that ends its thread
            failure = EngineError(f"{self.info['function']} raised {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._exchange.close(failure)

    def _make(self, batch: Sequence[SpeechRequest]) -> list[SpeechResult]:
        name = self.info["function"]
        try:
            clips = self._speak(list(batch)) if self._takes_batch else [self._speak(batch[0])]
        except Exception as error:
            logger.exception("%s raised for %s", name, ", ".join(repr(request.request_id) for request in batch))
            return [failure_result(request.request_id, error, name) for request in batch]
        try:
            num_clips = len(clips)
        except TypeError:
            num_clips = -1
        if num_clips != len(batch):
            returned = f"{num_clips} clips" if num_clips >= 0 else f"a {type(clips).__name__}"
            message = f"{name} returned {returned} for {len(batch)} requests."
            return [error_result(request.request_id, "engine_error", message) for request in batch]
        return [self._result(request, clip) for request, clip in zip(batch, clips, strict=True)]

    def _result(self, request: SpeechRequest, clip: Any) -> SpeechResult:
        try:
            audio, sample_rate = clip
            return SpeechResult(
                request_id=request.request_id,
                audio=_waveform(audio),
                sample_rate=_checked_rate(sample_rate),
                codes=None,
                num_frames=0,
                finish_reason="stop",
                eos=True,
            )
        except (TypeError, ValueError) as error:
            message = f"{self.info['function']} did not return (audio, sample_rate): {error}"
            return error_result(request.request_id, "engine_error", message)


def parameter_name(function: Callable[..., Any]) -> str | None:
    """ "requests" or "request", if that is the one parameter that the function must be given; else None."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of a builtin
        return None
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    required = [p for p in parameters if p.default is inspect.Parameter.empty and p.kind not in kinds]
    if len(required) == 1 and required[0].name in ("requests", "request"):
        return required[0].name
    return None


def _waveform(audio: Any) -> NDArray[np.float32]:
    """A copy, float32 [samples]. Raises ValueError or TypeError for anything but a mono waveform of floats."""
    array = np.asarray(audio)
    if array.ndim != 1:
        raise ValueError(f"audio has the shape {array.shape}; it must be [samples].")
    if not np.issubdtype(array.dtype, np.floating):
        raise ValueError(f"audio is {array.dtype}; it must be floats in -1 .. 1.")
    return array.astype(np.float32)


def _checked_rate(sample_rate: Any) -> int:
    if isinstance(sample_rate, bool) or int(sample_rate) != sample_rate or sample_rate <= 0:
        raise ValueError(f"sample_rate is {sample_rate!r}; it must be a whole number of Hz above 0.")
    return int(sample_rate)


def _name_of(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__qualname__)}"
