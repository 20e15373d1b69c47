"""The codec's decoder: codes to 24 kHz speech, causal from end to end."""

from __future__ import annotations

from functools import partial
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tts_batch.model.config import CodecDecoderConfig
from tts_batch.model.layers import MLP, RMSNorm
from tts_batch.model.speech_tokenizer.layers import CausalConv1d, CausalConvTranspose1d, Transformer
from tts_batch.model.speech_tokenizer.quantizer import DecoderQuantizer


class CodecDecoder(nn.Module):
    """Codes int64 [B, 16, T] to speech [B, T * 1920] within -1 .. 1.

    No frame depends on a later one, so padding on the right changes nothing; ids outside the codebook, which padding
    may contain, are clamped into it.
    """

    def __init__(self, config: CodecDecoderConfig) -> None:
        super().__init__()
        self.codebook_size = config.codebook_size
        self.samples_per_frame = prod(config.upsampling_ratios) * prod(config.upsample_rates)
        self.quantizer = DecoderQuantizer(config)
        self.pre_conv = CausalConv1d(config.codebook_dim, config.latent_dim, 3)
        self.pre_transformer = DecoderTransformer(config)
        self.upsample = nn.Sequential(
            *(
                nn.Sequential(
                    CausalConvTranspose1d(config.latent_dim, config.latent_dim, stride, stride=stride),
                    ConvNeXtBlock(config.latent_dim),
                )
                for stride in config.upsampling_ratios
            )
        )
        width = config.decoder_dim
        layers: list[nn.Module] = [CausalConv1d(config.latent_dim, width, 7)]
        for stride in config.upsample_rates:
            layers.append(UpsampleBlock(width, width // 2, stride))
            width //= 2
        layers += [Snake(width), CausalConv1d(width, 1, 7)]
        self.decoder = nn.Sequential(*layers)

    def forward(self, codes: Tensor) -> Tensor:
        x = self.quantizer.decode(codes.clamp(0, self.codebook_size - 1))
        x = self.pre_transformer(self.pre_conv(x).transpose(1, 2)).transpose(1, 2)
        return self.decoder(self.upsample(x))[:, 0].clamp(-1, 1)


class DecoderTransformer(Transformer):
    """The transformer over frames [B, T, latent_dim] -> same, narrower inside."""

    def __init__(self, config: CodecDecoderConfig) -> None:
        norm = partial(RMSNorm, config.hidden_size, config.rms_norm_eps)
        super().__init__(config, partial(MLP, config), norm, config.sliding_window)
        self.input_proj = nn.Linear(config.latent_dim, config.hidden_size)
        self.norm = norm()
        self.output_proj = nn.Linear(config.hidden_size, config.latent_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.output_proj(self.norm(super().forward(self.input_proj(x))))


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, then an MLP over channels, added to the input: [B, width, T] -> same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = CausalConv1d(width, width, 7, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1 = nn.Linear(width, 4 * width)
        self.pwconv2 = nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.dwconv(x).transpose(1, 2))
        y = self.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))
        return x + y.transpose(1, 2)


class UpsampleBlock(nn.Module):
    """Transposed convolution, then three dilated residual units: [B, in, T] -> [B, out, T * stride]."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            Snake(in_channels),
            CausalConvTranspose1d(in_channels, out_channels, 2 * stride, stride=stride),
            *(SnakeUnit(out_channels, dilation) for dilation in (1, 3, 9)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


class SnakeUnit(nn.Module):
    """A dilated and a pointwise convolution, each after a Snake, added to the input."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = Snake(channels)
        self.conv1 = CausalConv1d(channels, channels, 7, dilation=dilation)
        self.act2 = Snake(channels)
        self.conv2 = CausalConv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(self.act2(self.conv1(self.act1(x))))


class Snake(nn.Module):
    """Periodic activation x + sin²(e^alpha x) / e^beta, with a period and a height for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        frequency = self.alpha.exp()[:, None]
        height = 1.0 / (self.beta.exp() + 1e-9)[:, None]
        return x + height * torch.sin(x * frequency).pow(2)
