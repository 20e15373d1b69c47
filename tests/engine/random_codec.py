"""A codec decoder with random weights, for comparing two ways to compute it."""

from __future__ import annotations

import torch

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

_CALM = 0.5  # on the convolutions: residual units otherwise add up until all sound is clipped


@torch.no_grad()
def random_decoder(config: CodecDecoderConfig) -> CodecDecoder:
    """Every tensor random, so that none can be left out or put in the wrong place."""
    generator = torch.Generator().manual_seed(1)
    decoder = CodecDecoder(config)
    for name, tensor in decoder.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith("cluster_usage"):
            tensor.copy_(1 + noise.abs())
        elif tensor.dim() > 1:
            tensor.copy_(noise / tensor[0].numel() ** 0.5)
        else:
            tensor.copy_(0.3 * noise + ("norm" in name or "scale" in name))
        if name.startswith("decoder.") and tensor.dim() > 1:
            tensor.mul_(_CALM)
    return decoder.eval()


def relative_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """Of the whole tensor, in float64."""
    return float((result.double() - expected.double()).norm() / expected.double().norm())
