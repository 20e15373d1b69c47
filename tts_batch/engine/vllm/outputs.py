"""From what the host returns to a SpeechResult: every length is compared with what was sampled."""

from __future__ import annotations

import numpy as np

from tts_batch.engine.request import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME, SpeechResult
from tts_batch.engine.results import error_result
from tts_batch.engine.vllm.messages import HostResult

PLACEHOLDER_FRAMES = 1
"""vLLM-Omni answers a row without codes with this much audio, as if it were a clip."""


def to_result(output: HostResult, max_frames: int, effective: dict[str, str]) -> SpeechResult:
    """The result of a request with this budget.

    "stop" only for an end token; "length" when the budget was used up without one; anything else that is not exactly
    the audio of the sampled frames is an error. Codes are not returned: vLLM-Omni keeps them to itself.
    """
    name, audio = output.request_id, output.audio
    if output.finish_reason == "abort":
        return error_result(name, "engine_error", "vLLM-Omni aborted the request, unasked.")
    if audio is None:
        return error_result(name, "engine_error", "vLLM-Omni returned no audio.")
    if output.sample_rate != SAMPLE_RATE_HZ:
        return error_result(
            name, "engine_error", f"vLLM-Omni returned audio at {output.sample_rate} Hz, not {SAMPLE_RATE_HZ}."
        )
    num_frames, rest = divmod(len(audio), SAMPLES_PER_FRAME)
    num_sampled = None if output.num_tokens is None else output.num_tokens - 1  # the last token makes no frame
    is_placeholder = num_frames <= PLACEHOLDER_FRAMES and (num_sampled is None or num_sampled <= 0)
    if num_frames == 0 or is_placeholder:
        return error_result(
            name, "empty_audio", f"no frame was sampled: vLLM-Omni returned {len(audio)} samples as a placeholder."
        )
    if rest or num_sampled not in (None, num_frames) or num_frames > max_frames:
        sampled = "an unknown number of" if num_sampled is None else str(num_sampled)
        return error_result(
            name,
            "engine_error",
            f"vLLM-Omni returned {len(audio)} samples for {sampled} frames of {SAMPLES_PER_FRAME}, "
            f"with a budget of {max_frames}.",
        )
    if not np.isfinite(audio).all():
        return error_result(name, "non_finite", "vLLM-Omni returned samples that are not finite.")
    is_stop = output.finish_reason == "stop" or (output.finish_reason is None and num_frames < max_frames)
    if not is_stop and num_frames < max_frames:
        return error_result(
            name,
            "engine_error",
            f"vLLM-Omni ended after {num_frames} of {max_frames} frames as {output.finish_reason!r}, "
            "without an end token.",
        )
    return SpeechResult(
        request_id=name,
        audio=np.array(audio, dtype=np.float32),
        sample_rate=SAMPLE_RATE_HZ,
        codes=None,
        num_frames=num_frames,
        finish_reason="stop" if is_stop else "length",
        eos=is_stop,
        effective=effective,
        metrics=dict(output.metrics),
    )
