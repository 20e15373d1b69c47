"""Log-mel spectrogram of 24 kHz speech, the input of the speaker encoder."""

from functools import cache

import numpy as np
import torch

from tts_batch.model.padded import reflect

SAMPLE_RATE = 24_000
NUM_MELS = 128
FFT_SIZE = 1024
HOP = 256
PADDING = (FFT_SIZE - HOP) // 2  # at both ends
MAX_HZ = 12_000.0


def log_mel(audio: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Natural-log mel magnitudes, float32 [B, samples // 256, 128], of clips float32 [B, samples] at 24 kHz.

    Clips are padded on the right to one length; `lengths` int64 [B] are their valid samples, over 384. A clip of n
    samples has n // 256 frames; the rest is padding.
    """
    padded = reflect(audio[:, None], lengths, PADDING, PADDING)[:, 0]
    window = torch.hann_window(FFT_SIZE, device=padded.device)
    spectrum = torch.stft(padded, FFT_SIZE, HOP, window=window, center=False, return_complex=True)
    # The epsilon is inside the root, as in the recipe the encoder was trained with.
    magnitude = torch.sqrt(torch.view_as_real(spectrum).pow(2).sum(-1) + 1e-9)
    mel = _filterbank_on(padded.device) @ magnitude
    return torch.log(mel.clamp(min=1e-5)).transpose(1, 2)


@cache
def _filterbank_on(device: torch.device) -> torch.Tensor:
    # Cached: a copy from the host would wait for the device.
    return torch.from_numpy(mel_filterbank()).to(device)


@cache
def mel_filterbank() -> np.ndarray:
    """Triangular Slaney filters of unit area over the FFT bins, float32 [128, 513]."""
    edges = _mel_to_hz(np.linspace(0.0, _hz_to_mel(MAX_HZ), NUM_MELS + 2))
    bins = np.fft.rfftfreq(FFT_SIZE, 1 / SAMPLE_RATE)
    distance = edges[:, None] - bins
    width = np.diff(edges)[:, None]
    rising = -distance[:-2] / width[:-1]
    falling = distance[2:] / width[1:]
    # Rounded before and after scaling, as librosa does: the same filters to the last bit.
    triangles = np.maximum(0.0, np.minimum(rising, falling)).astype(np.float32)
    triangles *= (2.0 / (edges[2:] - edges[:-2]))[:, None]
    return triangles


# Slaney's mel scale: linear up to 1 kHz (mel 15), then 27 mels for each factor of 6.4.
_LINEAR_HZ_PER_MEL = 200.0 / 3
_KNEE_HZ = 1000.0
_KNEE_MEL = _KNEE_HZ / _LINEAR_HZ_PER_MEL
_LOG_STEP = np.log(6.4) / 27


def _hz_to_mel(hz: float) -> float:
    """Mel of a frequency above the knee."""
    return float(_KNEE_MEL + np.log(hz / _KNEE_HZ) / _LOG_STEP)


def _mel_to_hz(mel: np.ndarray) -> np.ndarray:
    above = _KNEE_HZ * np.exp(_LOG_STEP * (mel - _KNEE_MEL))
    return np.where(mel < _KNEE_MEL, mel * _LINEAR_HZ_PER_MEL, above)
