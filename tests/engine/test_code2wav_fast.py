"""The fast codec decoder computes what the exact one computes: here its torch twins, in tests/gpu its kernels."""

from __future__ import annotations

import pytest
import torch

from tests.engine.random_codec import CONFIG, random_decoder, relative_error
from tts_batch.engine.code2wav_fast import FastCodecDecoder
from tts_batch.model.speech_tokenizer.decoder import CodecDecoder


@pytest.fixture(scope="module")
def decoder() -> CodecDecoder:
    return random_decoder(CONFIG)


@pytest.fixture
def codes() -> torch.Tensor:
    return torch.randint(0, CONFIG.codebook_size, (3, 16, 9), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_float32_agrees_with_the_exact_decoder(decoder: CodecDecoder, codes: torch.Tensor) -> None:
    expected = decoder(codes)
    audio = FastCodecDecoder(decoder, torch.float32)(codes)
    assert audio.shape == (3, 9 * 1920)
    assert audio.dtype == torch.float32
    assert 0.05 < expected.std() < 0.7, "the comparison needs sound that is neither silent nor clipped"
    assert relative_error(audio, expected) < 1e-5


@torch.no_grad()
def test_bfloat16_is_no_further_from_float32_than_the_exact_decoder_in_bfloat16(
    decoder: CodecDecoder, codes: torch.Tensor
) -> None:
    expected = decoder(codes)
    fast = relative_error(FastCodecDecoder(decoder, torch.bfloat16)(codes), expected)
    rounded = CodecDecoder(CONFIG)
    rounded.load_state_dict(decoder.state_dict())
    assert 1e-4 < fast < 1.1 * relative_error(rounded.bfloat16()(codes), expected)


def test_padding_changes_nothing_before_it(decoder: CodecDecoder, codes: torch.Tensor) -> None:
    fast = FastCodecDecoder(decoder, torch.float32)
    padded = torch.cat([codes, torch.full((3, 16, 4), -1)], dim=2)
    torch.testing.assert_close(fast(padded)[:, : 9 * 1920], fast(codes), rtol=0, atol=1e-5)


def test_rows_do_not_mix(decoder: CodecDecoder, codes: torch.Tensor) -> None:
    fast = FastCodecDecoder(decoder, torch.float32)
    torch.testing.assert_close(fast(codes)[1:2], fast(codes[1:2]), rtol=0, atol=1e-5)
