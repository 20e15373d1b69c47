"""Clips of different lengths in one batch: each has the codes that it has alone, to its last, partial frame."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence

from tests.model.speech_tokenizer.near_ties import NEAR_TIE, sure
from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.speech_tokenizer import SpeechTokenizer
from tts_batch.model.tiny import build_tiny

TESTS = Path(__file__).parents[2]
LATENT = 1e-5


@pytest.fixture(scope="module")
def tokenizer() -> SpeechTokenizer:
    return Qwen3TTS.load(
        resolve_checkpoint(str(build_tiny("tiny-random", "base"))), "cpu", torch.float32
    ).speech_tokenizer


def read_clip(name: str) -> torch.Tensor:
    return torch.from_numpy(soundfile.read(TESTS / "data" / f"{name}.wav", dtype="float32")[0])


def padded(clips: list[torch.Tensor], samples: int = 0, value: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Clips in one batch of `samples` or of the longest's length, and their lengths."""
    longest = max(samples, *map(len, clips))
    rows = [torch.cat([clip, torch.full((longest - len(clip),), value)]) for clip in clips]
    return torch.stack(rows), torch.tensor([len(clip) for clip in clips])


def test_the_official_codes_of_single_clips(tokenizer: SpeechTokenizer) -> None:
    """The official package's own batch of these three has other codes in the last frames; ours must not."""
    names = ["ref_a_24k", "ref_c_24k", "ref_long_24k"]
    batch = tokenizer.encode_batch(*padded([read_clip(name) for name in names]))
    with np.load(TESTS / "golden" / "codec_encode.npz") as golden:
        for name, codes in zip(names, batch.numpy(), strict=True):
            expected, margin = golden[f"{name}_codes"], golden[f"{name}_margin"]
            is_sure = np.logical_and.accumulate(margin > NEAR_TIE, axis=1)
            assert is_sure[-1].any()
            np.testing.assert_array_equal(codes[: len(expected)][is_sure], expected[is_sure])


def test_started_frames(tokenizer: SpeechTokenizer) -> None:
    """Every stage of the encoder ends on a partial stride in one of these, down to one sample."""
    clip, lengths = read_clip("ref_a_24k"), [1, 959, 1919, 1920, 1921, 3840, 3841]
    batch = tokenizer.encode_batch(*padded([clip[:n] for n in lengths], samples=9_000))
    with np.load(TESTS / "golden" / "codec_encode.npz") as golden:
        for n, codes in zip(lengths, batch, strict=True):
            np.testing.assert_array_equal(codes[: -(-n // 1920)], golden[f"len{n}_codes"])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 20_000), min_size=1, max_size=4), st.integers(0, 25_000))
def test_latents_equal_those_alone(tokenizer: SpeechTokenizer, lengths: list[int], samples: int) -> None:
    """What the padding holds does not matter either."""
    clip = read_clip("ref_c_24k")
    clips = [clip[1_000 * i :][:n] for i, n in enumerate(lengths)]
    audio, counts = padded(clips, samples, value=0.3)
    with torch.no_grad():
        together = tokenizer.encoder.latent(audio[:, None], counts)
        for latent, one in zip(together, clips, strict=True):
            alone = tokenizer.encoder.latent(one[None, None])[0]
            assert alone.shape[1] == -(-len(one) // 1920)
            torch.testing.assert_close(latent[:, : alone.shape[1]], alone, atol=LATENT, rtol=0)


def test_half_a_second_beside_thirteen(tokenizer: SpeechTokenizer) -> None:
    long = read_clip("ref_long_24k").repeat(2)[: 13 * 24_000 + 11]
    clips = [long, read_clip("ref_a_24k")[:12_000]]
    for clip, codes in zip(clips, tokenizer.encode_batch(*padded(clips)), strict=True):
        alone, is_sure = tokenizer.encode(clip).numpy(), sure(tokenizer, clip.numpy())
        assert is_sure.mean() > 0.7
        np.testing.assert_array_equal(codes[: len(alone)].numpy()[is_sure], alone[is_sure])


def test_without_lengths_padding_changes_the_codes(tokenizer: SpeechTokenizer) -> None:
    """Why the lengths are there: a clip with zeros behind it is another clip."""
    clip = read_clip("ref_a_24k")[:5_000]
    batch = pad_sequence([clip, read_clip("ref_a_24k")[:9_000]], batch_first=True)
    with torch.no_grad():
        in_batch = tokenizer.encoder.latent(batch[:, None])[0, :, 2]
        alone = tokenizer.encoder.latent(clip[None, None])[0, :, 2]
    assert (in_batch - alone).abs().max() > 100 * LATENT
