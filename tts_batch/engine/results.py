"""How a request ends: the four ways to build its SpeechResult."""

from __future__ import annotations

import torch

from tts_batch.engine.code2wav.utterance import Voiced
from tts_batch.engine.request import SAMPLE_RATE_HZ, SpeechResult


def spoken_result(clip: Voiced) -> SpeechResult:
    """A clip."""
    row = clip.row
    return SpeechResult(
        request_id=row.prepared.request.request_id,
        audio=clip.audio,
        sample_rate=SAMPLE_RATE_HZ,
        codes=clip.codes,
        num_frames=len(row.codes),
        finish_reason=row.finish_reason,
        eos=row.eos,
        effective=row.prepared.prompt.effective,
        metrics={**row.prepared.metrics, **row.metrics, "code2wav_s": clip.code2wav_s},
    )


def failure_result(request_id: str, error: Exception) -> SpeechResult:
    """A request that an exception ended.

    An exception with a `reason` and a `message` (a bad prompt, an unreadable reference) speaks for itself; any other
    is an `engine_error`, or `out_of_memory`.
    """
    reason = getattr(error, "reason", None)
    if isinstance(reason, str):
        return error_result(request_id, reason, str(getattr(error, "message", error)))
    if isinstance(error, torch.OutOfMemoryError):
        return error_result(request_id, "out_of_memory", "the device has too little memory to prepare this row.")
    return error_result(request_id, "engine_error", f"preparing this row raised {type(error).__name__}: {error}")


def error_result(request_id: str, reason: str, message: str) -> SpeechResult:
    """A request that failed for one of the closed list of row reasons."""
    return _silent_result(request_id, "error", reason, message)


def cancelled_result(request_id: str) -> SpeechResult:
    """A request that was cancelled."""
    return _silent_result(request_id, "cancelled", None, None)


def _silent_result(request_id: str, finish_reason: str, reason: str | None, message: str | None) -> SpeechResult:
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
