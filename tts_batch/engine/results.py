"""How a request ends without a clip: its SpeechResult for an error, an exception, or a cancellation."""

from __future__ import annotations

from tts_batch.engine.memory_errors import is_out_of_memory
from tts_batch.engine.request import SAMPLE_RATE_HZ, SpeechResult


def failure_result(request_id: str, error: BaseException, doing: str = "preparing this row") -> SpeechResult:
    """A request that an exception ended, raised by `doing` something for it.

    An exception with a `reason` and a `message` (a bad prompt, an unreadable reference) gives both; any other
    is an `engine_error`, or `out_of_memory`.
    """
    reason = getattr(error, "reason", None)
    if isinstance(reason, str):
        return error_result(request_id, reason, str(getattr(error, "message", error)))
    if is_out_of_memory(error):
        return error_result(request_id, "out_of_memory", f"the device ran out of memory while {doing}.")
    return error_result(request_id, "engine_error", f"{doing} raised {type(error).__name__}: {error}")


def error_result(request_id: str, reason: str, message: str) -> SpeechResult:
    """A request that failed for one of the closed list of row reasons."""
    return _without_clip(request_id, "error", reason, message)


def cancelled_result(request_id: str) -> SpeechResult:
    """A request that was aborted."""
    return _without_clip(request_id, "cancelled", None, None)


def _without_clip(request_id: str, finish_reason: str, reason: str | None, message: str | None) -> SpeechResult:
    return SpeechResult(
        request_id=request_id,
        audio=None,
        sample_rate=SAMPLE_RATE_HZ,
        codes=None,
        num_frames=0,
        finish_reason=finish_reason,
        eos=False,
        reason=reason,
        error=message,
    )
