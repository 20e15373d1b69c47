"""Short ways to ask a tiny model for a clip."""

from __future__ import annotations

import numpy as np

from tts_batch.engine.request import Reference, SamplingParams, SpeechRequest

GREEDY = SamplingParams(do_sample=False, subtalker_dosample=False)


def ask(request_id: str = "a", **fields: object) -> SpeechRequest:
    """A request for a CustomVoice clip of two frames; any field may be given."""
    given: dict[str, object] = {
        "text": "Hello.",
        "task": "custom_voice",
        "seed": 7,
        "max_frames": 2,
        "sampling": SamplingParams(),
        "speaker": "ryan",
        **fields,
    }
    return SpeechRequest(request_id=request_id, **given)  # type: ignore[arg-type]


def hum(seconds: float, pitch_hz: float = 150.0) -> np.ndarray:
    """A voice-like clip, float32 at 24 kHz: harmonics under a slow envelope."""
    t = np.arange(round(seconds * 24_000)) / 24_000
    wave = sum(np.sin(2 * np.pi * pitch_hz * k * t + k) / k for k in range(1, 12))
    return (0.2 * wave * (0.3 + np.abs(np.sin(2 * np.pi * 1.7 * t)))).astype(np.float32)


def voice(key: str = "v", seconds: float = 1.0, **fields: object) -> Reference:
    """A reference whose pitch hangs on its key."""
    pitch_hz = 100.0 + sum(key.encode()) % 120
    given: dict[str, object] = {"load": lambda: hum(seconds, pitch_hz), "text": "Reference words.", **fields}
    return Reference(key=f"{key} {seconds}", **given)  # type: ignore[arg-type]
