"""The codec's encoder, 24 kHz speech to codes: Mimi's, with attention over the whole past.

Mimi's configuration names a window of 250 steps (10 s). The official package never applied it, transformers does
from version 5 on; written out here, the codes of a long reference depend on no installed version.
"""

from __future__ import annotations

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from tts_batch.model.config import CodecEncoderConfig
from tts_batch.model.speech_tokenizer.layers import CausalConv1d, Transformer
from tts_batch.model.speech_tokenizer.quantizer import EncoderQuantizer

STEPS_PER_FRAME = 2  # convolutions and transformer run at 25 Hz, codes at 12.5 Hz


class CodecEncoder(nn.Module):
    """Speech [B, 1, samples] to codes int64 [B, levels, ceil(samples / 1920)].

    With `lengths` [B], in samples, rows may be padded on the right; each has the codes that it has alone.
    """

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.encoder = ConvEncoder(config)
        self.encoder_transformer = Transformer(
            config,
            mlp=partial(GeluMLP, width, config.intermediate_size),
            norm=partial(nn.LayerNorm, width, eps=config.norm_eps),
        )
        self.downsample = CausalConv1d(
            width, width, 2 * STEPS_PER_FRAME, stride=STEPS_PER_FRAME, bias=False, pad_mode="replicate"
        )
        self.quantizer = EncoderQuantizer(config)

    def forward(self, audio: Tensor, levels: int, lengths: Tensor | None = None) -> Tensor:
        return self.quantizer.encode(self.latent(audio, lengths), levels)

    def latent(self, audio: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The quantizer's input, [B, hidden_size, frames]."""
        steps, lengths = self.encoder(audio, lengths)
        steps = self.encoder_transformer(steps.transpose(1, 2)).transpose(1, 2)
        return self.downsample(steps, lengths)


class ConvEncoder(nn.Module):
    """Strided convolutions down to 25 Hz: [B, 1, samples] -> [B, hidden_size, ceil(samples / 960)].

    Also returns the rows' lengths in these steps, or None without `lengths`.
    """

    def __init__(self, config: CodecEncoderConfig) -> None:
        super().__init__()
        width = config.num_filters
        layers: list[nn.Module] = [CausalConv1d(1, width, config.kernel_size)]
        for stride in reversed(config.upsampling_ratios):
            layers += [
                ResidualUnit(width, width // config.compress, config.residual_kernel_size),
                nn.ELU(),
                CausalConv1d(width, 2 * width, 2 * stride, stride=stride),
            ]
            width *= 2
        layers += [nn.ELU(), CausalConv1d(width, config.hidden_size, config.last_kernel_size)]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        for layer in self.layers:
            if isinstance(layer, CausalConv1d):
                x = layer(x, lengths)
                lengths = None if lengths is None else layer.num_steps(lengths)
            else:
                x = layer(x)
        return x, lengths


class ResidualUnit(nn.Module):
    """Two convolutions through a narrower middle, added to the input."""

    def __init__(self, width: int, middle: int, kernel_size: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.ELU(), CausalConv1d(width, middle, kernel_size), nn.ELU(), CausalConv1d(middle, width, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class GeluMLP(nn.Module):
    """Two linear maps with an exact GELU between them."""

    def __init__(self, width: int, middle: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, middle, bias=False)
        self.fc2 = nn.Linear(middle, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))
