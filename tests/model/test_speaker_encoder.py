"""The speaker encoder against the official package's x-vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence

from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.speaker_encoder import SpeakerEncoder
from tts_batch.model.tiny import build_tiny

TESTS = Path(__file__).parents[1]

X_VECTOR = 2e-5
CLIPS = ["ref_a_24k", "ref_b_16k", "ref_c_24k", "ref_long_24k", "ref_stereo_44k"]

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


@pytest.fixture(scope="module")
def encoder() -> SpeakerEncoder:
    encoder = load(torch.float32).speaker_encoder
    assert encoder is not None
    return encoder


def padded(clips: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Clips in one batch, 1,000 samples longer than the longest, with a loud hum for padding; and their lengths."""
    lengths = torch.tensor([len(clip) for clip in clips])
    audio = pad_sequence([torch.zeros(int(lengths.max()) + 1_000), *map(torch.from_numpy, clips)], batch_first=True)[1:]
    steps = torch.arange(audio.shape[1])
    return torch.where(steps < lengths[:, None], audio, 0.5 * torch.sin(steps / 30)), lengths


@pytest.mark.parametrize("clip", CLIPS)
def test_the_official_x_vector(encoder: SpeakerEncoder, golden: Arrays, clip: str) -> None:
    x_vector = encoder.embed(read_clip(golden, clip))
    np.testing.assert_allclose(x_vector, golden[f"{clip}_xvector"], atol=X_VECTOR)


def test_the_official_x_vectors_in_one_batch(encoder: SpeakerEncoder, golden: Arrays) -> None:
    x_vectors = encoder.embed_batch(*padded([read_clip(golden, clip) for clip in CLIPS]))
    for x_vector, clip in zip(x_vectors, CLIPS, strict=True):
        np.testing.assert_allclose(x_vector, golden[f"{clip}_xvector"], atol=X_VECTOR)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1_280, 30_000), min_size=1, max_size=4))
def test_a_batch_equals_its_members_alone(encoder: SpeakerEncoder, golden: Arrays, lengths: list[int]) -> None:
    """From five frames on: reflection in the widest convolution needs as many."""
    clip = read_clip(golden, "ref_c_24k")
    clips = [clip[1_000 * i :][:n] for i, n in enumerate(lengths)]
    for one, x_vector in zip(clips, encoder.embed_batch(*padded(clips)), strict=True):
        torch.testing.assert_close(x_vector, encoder.embed(one), atol=X_VECTOR, rtol=0)


def test_half_a_second_beside_thirteen(encoder: SpeakerEncoder, golden: Arrays) -> None:
    clips = [np.tile(read_clip(golden, "ref_long_24k"), 2)[: 13 * 24_000 + 11], read_clip(golden, "ref_a_24k")[:12_000]]
    for one, x_vector in zip(clips, encoder.embed_batch(*padded(clips)), strict=True):
        torch.testing.assert_close(x_vector, encoder.embed(one), atol=X_VECTOR, rtol=0)


def test_bfloat16_stays_close(golden: Arrays) -> None:
    encoder = load(torch.bfloat16).speaker_encoder
    assert encoder is not None
    x_vector = encoder.embed(read_clip(golden, "ref_a_24k"))
    assert x_vector.dtype == torch.bfloat16
    expected = torch.from_numpy(golden["ref_a_24k_xvector"])
    assert torch.cosine_similarity(x_vector.float(), expected, dim=0) > 0.9999
