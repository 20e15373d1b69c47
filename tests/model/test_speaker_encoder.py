"""The speaker encoder against the official package's x-vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.tiny import build_tiny

TESTS = Path(__file__).parents[1]

Arrays = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def golden() -> Arrays:
    with np.load(TESTS / "golden" / "speaker_encoder.npz") as arrays:
        return dict(arrays)


def read_clip(golden: Arrays, clip: str) -> np.ndarray:
    """The clip at 24 kHz, resampled by the official package where it has another rate."""
    if f"{clip}_wav24k" in golden:
        return golden[f"{clip}_wav24k"]
    return soundfile.read(TESTS / "data" / f"{clip}.wav", dtype="float32")[0]


def load(dtype: torch.dtype) -> Qwen3TTS:
    return Qwen3TTS.load(resolve_checkpoint(str(build_tiny("tiny-random", "base"))), "cpu", dtype)


@pytest.mark.parametrize("clip", ["ref_a_24k", "ref_b_16k", "ref_c_24k", "ref_long_24k", "ref_stereo_44k"])
def test_the_official_x_vector(golden: Arrays, clip: str) -> None:
    encoder = load(torch.float32).speaker_encoder
    assert encoder is not None
    x_vector = encoder.embed(read_clip(golden, clip))
    np.testing.assert_allclose(x_vector, golden[f"{clip}_xvector"], atol=2e-5)


def test_bfloat16_stays_close(golden: Arrays) -> None:
    encoder = load(torch.bfloat16).speaker_encoder
    assert encoder is not None
    x_vector = encoder.embed(read_clip(golden, "ref_a_24k"))
    assert x_vector.dtype == torch.bfloat16
    expected = torch.from_numpy(golden["ref_a_24k_xvector"])
    assert torch.cosine_similarity(x_vector.float(), expected, dim=0) > 0.9999
