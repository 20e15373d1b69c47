"""The codec against the official package, and the properties of its decoder: causal, batchable, cut at the seams."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.speech_tokenizer import SpeechTokenizer
from tts_batch.model.speech_tokenizer.quantizer import Codebook
from tts_batch.model.tiny import build_tiny

TESTS = Path(__file__).parents[2]
WAV = 5e-5
LATENT = 1e-5
NEAR_TIE = 1e-3  # of the distances to the nearest and second nearest vector

Arrays = dict[str, np.ndarray]


def read_golden(name: str) -> Arrays:
    with np.load(TESTS / "golden" / f"{name}.npz") as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def tokenizer() -> SpeechTokenizer:
    return load(torch.float32)


def load(dtype: torch.dtype) -> SpeechTokenizer:
    checkpoint = resolve_checkpoint(str(build_tiny("tiny-random", "base")))
    return Qwen3TTS.load(checkpoint, "cpu", torch.float32, codec_dtype=dtype).speech_tokenizer


@pytest.fixture(scope="module")
def encoded() -> Arrays:
    return read_golden("codec_encode")


@pytest.fixture(scope="module")
def decoded() -> Arrays:
    return read_golden("codec_decode")


def read_clip(clip: str) -> np.ndarray:
    return soundfile.read(TESTS / "data" / f"{clip}.wav", dtype="float32")[0]


def random_codes(frames: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(2048, (frames, 16), generator=torch.Generator().manual_seed(seed))


# ------------------------------------------------------------------ encoder


@pytest.mark.parametrize("clip", ["ref_a_24k", "ref_c_24k", "ref_long_24k"])
def test_the_official_codes(tokenizer: SpeechTokenizer, encoded: Arrays, clip: str) -> None:
    """ref_long lasts 12.6 s: a window of 10 s in the encoder's attention would show from frame 125 on."""
    audio = read_clip(clip)
    codes = tokenizer.encode(audio)
    with torch.no_grad():
        latent = tokenizer.encoder.latent(torch.from_numpy(audio)[None, None])

    expected, margin = encoded[f"{clip}_codes"], encoded[f"{clip}_margin"]
    assert codes.dtype == torch.int64
    assert codes.shape == expected.shape
    np.testing.assert_allclose(latent, encoded[f"{clip}_latent"], atol=LATENT)
    # A near tie may fall the other way on another processor, and then changes the later levels of its frame.
    sure = np.logical_and.accumulate(margin > NEAR_TIE, axis=1)
    assert sure.mean() > 0.7
    np.testing.assert_array_equal(codes.numpy()[sure], expected[sure])
    assert (codes.numpy() == expected).mean() > 0.98


@pytest.mark.parametrize("samples", [1, 959, 1919, 1920, 1921, 3840, 3841])
def test_a_started_frame_counts(tokenizer: SpeechTokenizer, encoded: Arrays, samples: int) -> None:
    codes = tokenizer.encode(read_clip("ref_a_24k")[:samples])
    np.testing.assert_array_equal(codes, encoded[f"len{samples}_codes"])


# ------------------------------------------------------------------ decoder


@pytest.mark.parametrize("frames", [1, 2, 7, 25, 40, 80, 330])
def test_the_official_audio(tokenizer: SpeechTokenizer, decoded: Arrays, frames: int) -> None:
    """330 frames cross a seam; 80 reach past the attention window; 7 hold a codebook row that was never used."""
    audio = tokenizer.decode(decoded[f"codes_{frames}"])
    assert audio.dtype == torch.float32
    assert audio.shape == (frames * 1920,)
    kept = 17 if frames == 330 else 1  # every so many samples of the official wave
    np.testing.assert_allclose(audio[::kept], decoded[f"wav_{frames}"], atol=WAV)


def test_a_seam_changes_the_audio(tokenizer: SpeechTokenizer) -> None:
    codes = random_codes(310)
    with torch.no_grad():
        whole = tokenizer.decoder(codes.T[None])[0]
    cut = tokenizer.decode(codes)
    np.testing.assert_allclose(cut[: 300 * 1920], whole[: 300 * 1920], atol=WAV)
    assert (cut - whole)[300 * 1920 :].abs().max() > 100 * WAV


@pytest.mark.parametrize("padding", [-1, 0, 2150])
def test_what_follows_a_frame_does_not_change_it(tokenizer: SpeechTokenizer, padding: int) -> None:
    codes = random_codes(12)
    padded = torch.cat([codes, torch.full((9, 16), padding)])
    with torch.no_grad():
        alone, followed = tokenizer.decoder(codes.T[None]), tokenizer.decoder(padded.T[None])
    np.testing.assert_allclose(followed[:, : alone.shape[1]], alone, atol=WAV)


# ------------------------------------------------------------------ dtypes and loading


def test_a_bfloat16_codec_computes_in_bfloat16(decoded: Arrays) -> None:
    """Only the audio is compared: on processors with AMX, torch 2.13's bfloat16 convolution is wrong (not merely
    rounded) at 16 channels, kernel 12 and stride 6, which the tiny encoder has and the released one has not."""
    tokenizer = load(torch.bfloat16)
    assert {tensor.dtype for tensor in tokenizer.state_dict().values()} == {torch.bfloat16}

    audio = tokenizer.decode(decoded["codes_80"]).numpy()
    noise = audio - decoded["wav_80"]
    assert audio.dtype == np.float32
    assert 20 < 10 * np.log10(decoded["wav_80"].var() / noise.var()) < 40  # dB; a float32 codec reaches 90

    codes = tokenizer.encode(read_clip("ref_a_24k"))
    assert codes.shape == (26, 16)


def test_codebooks_follow_new_values_and_dtypes() -> None:
    """They are divided once and kept, so loading and casting must drop what was kept."""
    tokenizer, codes = load(torch.float32), random_codes(3)
    before = tokenizer.decode(codes)

    state = {name: tensor.clone() for name, tensor in tokenizer.state_dict().items()}
    for name, tensor in state.items():
        if name.endswith("embedding_sum"):
            tensor.neg_()
    tokenizer.load_state_dict(state)
    assert not torch.equal(tokenizer.decode(codes), before)

    tokenizer.to(torch.bfloat16)
    codebooks = [module for module in tokenizer.modules() if isinstance(module, Codebook)]
    assert len(codebooks) == 32 + 16
    assert {codebook.vectors.dtype for codebook in codebooks} == {torch.bfloat16}
