"""--trim: silence off the edges of a clip, told by the clip's own level, so that a quiet voice stays whole."""

from __future__ import annotations

from dataclasses import replace

from tts_batch.engine.request import SpeechResult
from tts_batch.worker.checks import find_broken_audio
from tts_batch.worker.sound import find_sound


def trim(result: SpeechResult, margin_s: float) -> tuple[SpeechResult, dict[str, float]]:
    """Return `result` with at most `margin_s` of silence at either edge, and the seconds that were removed.

    Its codes and `num_frames` stay those of the whole. What has no audio, or nothing but silence, stays as it is.
    """
    audio, rate_hz = result.audio, result.sample_rate
    if audio is None or find_broken_audio(result):
        return result, {}
    start, stop = find_sound(audio, rate_hz)
    margin = round(margin_s * rate_hz)
    start, stop = max(0, start - margin), min(audio.size, stop + margin)
    removed = {"trimmed_head_s": start / rate_hz, "trimmed_tail_s": (audio.size - stop) / rate_hz}
    return replace(result, audio=audio[start:stop]), {name: round(seconds, 3) for name, seconds in removed.items()}
