"""The fast codec decoder computes what the exact one computes: here its torch twins, in tests/gpu its kernels."""

from __future__ import annotations

import pytest
import torch

from tts_batch.engine.code2wav_fast import FastCodecDecoder
from tts_batch.model.config import CodecDecoderConfig
from tts_batch.model.speech_tokenizer.decoder import CodecDecoder

CONFIG = CodecDecoderConfig(
    codebook_size=64,
    codebook_dim=32,
    latent_dim=48,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=16,
    sliding_window=5,
    rope_theta=1e4,
    rms_norm_eps=1e-5,
    num_quantizers=16,
    num_semantic_quantizers=1,
    decoder_dim=64,
    upsampling_ratios=(2, 2),
    upsample_rates=(8, 5, 4, 3),
)

CALM = 0.5  # on the convolutions: residual units otherwise add up until all sound is clipped


@pytest.fixture(scope="module")
def decoder() -> CodecDecoder:
    """Every tensor random, so that none can be left out or put in the wrong place."""
    generator = torch.Generator().manual_seed(0)
    decoder = CodecDecoder(CONFIG)
    for name, tensor in decoder.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith("cluster_usage"):
            tensor.copy_(1 + noise.abs())
        elif tensor.dim() > 1:
            tensor.copy_(noise / tensor[0].numel() ** 0.5)
        else:
            tensor.copy_(0.3 * noise + ("norm" in name or "scale" in name))
        if name.startswith("decoder.") and tensor.dim() > 1:
            tensor.mul_(CALM)
    return decoder.eval()


@pytest.fixture
def codes() -> torch.Tensor:
    return torch.randint(0, CONFIG.codebook_size, (3, 16, 9), generator=torch.Generator().manual_seed(1))


def _error(result: torch.Tensor, expected: torch.Tensor) -> float:
    return float((result.double() - expected.double()).norm() / expected.double().norm())


@torch.no_grad()
def test_float32_agrees_with_the_exact_decoder(decoder: CodecDecoder, codes: torch.Tensor) -> None:
    expected = decoder(codes)
    audio = FastCodecDecoder(decoder, torch.float32)(codes)
    assert audio.shape == (3, 9 * 1920)
    assert audio.dtype == torch.float32
    assert 0.05 < expected.std() < 0.7, "the comparison needs sound that is neither silent nor clipped"
    assert _error(audio, expected) < 1e-5


@torch.no_grad()
def test_bfloat16_is_no_further_from_float32_than_the_exact_decoder_in_bfloat16(
    decoder: CodecDecoder, codes: torch.Tensor
) -> None:
    expected = decoder(codes)
    fast = _error(FastCodecDecoder(decoder, torch.bfloat16)(codes), expected)
    rounded = CodecDecoder(CONFIG)
    rounded.load_state_dict(decoder.state_dict())
    assert 1e-4 < fast < 1.1 * _error(rounded.bfloat16()(codes), expected)


def test_padding_changes_nothing_before_it(decoder: CodecDecoder, codes: torch.Tensor) -> None:
    fast = FastCodecDecoder(decoder, torch.float32)
    padded = torch.cat([codes, torch.full((3, 16, 4), -1)], dim=2)
    torch.testing.assert_close(fast(padded)[:, : 9 * 1920], fast(codes), rtol=0, atol=1e-5)


def test_rows_do_not_mix(decoder: CodecDecoder, codes: torch.Tensor) -> None:
    fast = FastCodecDecoder(decoder, torch.float32)
    torch.testing.assert_close(fast(codes)[1:2], fast(codes[1:2]), rtol=0, atol=1e-5)
