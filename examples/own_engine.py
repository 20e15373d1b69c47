"""Another TTS model in a few lines: in this folder, `tts-batch synth TABLE --out wavs/ --engine own_engine:speak`."""

import numpy as np

from tts_batch.engine import SpeechRequest

SAMPLE_RATE_HZ = 16_000


def speak(request: SpeechRequest) -> tuple[np.ndarray, int]:
    """A tone for each word, as high as the word is long: put a model's own call here."""
    time_s = np.arange(SAMPLE_RATE_HZ // 3) / SAMPLE_RATE_HZ
    fade = np.sin(np.pi * time_s / time_s[-1])
    tones = [np.sin(2 * np.pi * (160 + 20 * len(word)) * time_s) for word in request.text.split()]
    return np.concatenate([0.3 * fade * tone for tone in tones]), SAMPLE_RATE_HZ
