"""The speaker encoder's mel: the filters, and the frames against the official package and against float64."""

from __future__ import annotations

from pathlib import Path

import librosa
import numpy as np
import pytest
import soundfile
import torch

from tts_batch.model.mel import log_mel, mel_filterbank

TESTS = Path(__file__).parents[1]


def alone(audio: np.ndarray) -> np.ndarray:
    """Of one clip."""
    return log_mel(torch.from_numpy(audio)[None], torch.tensor([len(audio)]))[0].numpy()


def test_the_filters_are_librosas_to_the_last_bit() -> None:
    theirs = librosa.filters.mel(sr=24_000, n_fft=1024, n_mels=128, fmin=0, fmax=12_000)
    np.testing.assert_array_equal(mel_filterbank(), theirs)


@pytest.mark.parametrize("samples", [385, 1023, 1024, 25_599, 25_600])
def test_frames_are_the_plain_definition_in_float64(samples: int) -> None:
    audio = np.random.default_rng(samples).uniform(-0.5, 0.5, samples).astype(np.float32)
    padded = np.pad(audio.astype(np.float64), 384, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, 1024)[::256]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(1024) / 1024)
    magnitude = np.sqrt(np.abs(np.fft.rfft(frames * hann)) ** 2 + 1e-9)
    expected = np.log(np.maximum(magnitude @ mel_filterbank().T.astype(np.float64), 1e-5))

    mel = alone(audio)

    assert mel.shape == (samples // 256, 128)
    np.testing.assert_allclose(mel, expected, atol=1e-4)


@pytest.mark.parametrize("clip", ["ref_a_24k", "ref_c_24k"])
def test_the_official_mel(clip: str) -> None:
    audio, _ = soundfile.read(TESTS / "data" / f"{clip}.wav", dtype="float32")
    with np.load(TESTS / "golden" / "speaker_encoder.npz") as golden:
        expected = golden[f"{clip}_mel"][0].T
    mel = alone(audio)
    # The logarithm of a nearly empty filter magnifies the FFT's rounding, which differs between processors.
    np.testing.assert_allclose(np.exp(mel), np.exp(expected), atol=2e-6)
    np.testing.assert_allclose(mel, expected, atol=1e-3)
