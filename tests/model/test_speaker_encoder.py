"""The speaker encoder against the official package's x-vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.tiny import build_tiny

GOLDEN = Path(__file__).parents[1] / "golden" / "speaker_encoder.npz"


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as arrays:
        return dict(arrays)


def load(dtype: torch.dtype) -> Qwen3TTS:
    return Qwen3TTS.load(resolve_checkpoint(str(build_tiny("tiny-random", "base"))), "cpu", dtype)


@pytest.mark.parametrize("clip", ["ref_a_24k", "ref_c_24k"])
def test_the_official_x_vector(golden: dict[str, np.ndarray], clip: str) -> None:
    encoder = load(torch.float32).speaker_encoder
    assert encoder is not None
    x_vector = encoder.embed(golden[f"{clip}_wav"])
    np.testing.assert_allclose(x_vector, golden[f"{clip}_xvector"], atol=2e-5)


def test_bfloat16_stays_close(golden: dict[str, np.ndarray]) -> None:
    encoder = load(torch.bfloat16).speaker_encoder
    assert encoder is not None
    x_vector = encoder.embed(golden["ref_a_24k_wav"])
    assert x_vector.dtype == torch.bfloat16
    expected = torch.from_numpy(golden["ref_a_24k_xvector"])
    assert torch.cosine_similarity(x_vector.float(), expected, dim=0) > 0.9999
