"""The speaker encoder (ECAPA-TDNN), from a reference clip to an x-vector. Base checkpoints only."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from tts_batch.model.config import SpeakerEncoderConfig
from tts_batch.model.mel import HOP, log_mel
from tts_batch.model.padded import masked_mean, reflect, valid_mask


class SpeakerEncoder(nn.Module):
    """Log-mel frames [B, T, 128] to x-vectors [B, enc_dim], not normalised.

    Rows are padded on the right to one length; `lengths` int64 [B] are their valid frames.
    """

    def __init__(self, config: SpeakerEncoderConfig) -> None:
        super().__init__()
        first, *middle, last = config.enc_channels
        first_kernel, *kernels, last_kernel = config.enc_kernel_sizes
        first_dilation, *dilations, last_dilation = config.enc_dilations
        blocks: list[nn.Module] = [ConvReLU(config.mel_dim, first, first_kernel, first_dilation)]
        channels = first
        for width, kernel, dilation in zip(middle, kernels, dilations, strict=True):
            blocks.append(SERes2NetBlock(channels, width, kernel, dilation, config))
            channels = width
        self.blocks = nn.ModuleList(blocks)
        self.mfa = ConvReLU(sum(middle), last, last_kernel, last_dilation)
        self.asp = AttentivePooling(last, config.enc_attention_channels)
        self.fc = nn.Conv1d(2 * last, config.enc_dim, 1)

    def embed(self, audio: Tensor | np.ndarray) -> Tensor:
        """X-vector [enc_dim], in the module's dtype, of one clip: float32 [samples], mono, 24 kHz, over 384 samples."""
        samples = torch.as_tensor(audio, dtype=torch.float32, device=self.fc.weight.device)
        return self.embed_batch(samples[None], torch.tensor([len(samples)], device=samples.device))[0]

    @torch.no_grad()
    def embed_batch(self, audio: Tensor, lengths: Tensor) -> Tensor:
        """X-vectors [B, enc_dim] of padded clips float32 [B, samples] of `lengths` int64 [B] valid samples.

        Equal to those of `embed` up to rounding. The mel is computed in float32 in any dtype of the module.
        """
        return self(log_mel(audio, lengths).to(self.fc.weight), lengths // HOP)

    def forward(self, mel: Tensor, lengths: Tensor) -> Tensor:
        x = self.blocks[0](mel.transpose(1, 2), lengths)
        outputs = []
        for block in self.blocks[1:]:
            x = block(x, lengths)
            outputs.append(x)
        x = self.mfa(torch.cat(outputs, dim=1), lengths)
        return self.fc(self.asp(x, lengths))[..., 0]


class ConvReLU(nn.Module):
    """Convolution that keeps the length, by reflection at both ends, and a ReLU."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(in_channels, out_channels, kernel_size, dilation=dilation)
        padding = (kernel_size - 1) * dilation
        self.padding = (padding // 2, padding - padding // 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        if any(self.padding):
            x = reflect(x, lengths, *self.padding)
        return torch.relu(self.conv(x))


class SERes2NetBlock(nn.Module):
    """Pointwise in, multi-scale convolution, pointwise out, channel gates; added to the input."""

    def __init__(
        self, in_channels: int, channels: int, kernel_size: int, dilation: int, config: SpeakerEncoderConfig
    ) -> None:
        super().__init__()
        self.tdnn1 = ConvReLU(in_channels, channels)
        self.res2net_block = Res2Net(channels, kernel_size, dilation, config.enc_res2net_scale)
        self.tdnn2 = ConvReLU(channels, channels)
        self.se_block = SqueezeExcitation(channels, config.enc_se_channels)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        mixed = self.res2net_block(self.tdnn1(x, lengths), lengths)
        return x + self.se_block(self.tdnn2(mixed, lengths), lengths)


class Res2Net(nn.Module):
    """Channels in `scale` chunks: the first passes, each later one is convolved together with the result before it."""

    def __init__(self, channels: int, kernel_size: int, dilation: int, scale: int) -> None:
        super().__init__()
        width = channels // scale
        self.blocks = nn.ModuleList(ConvReLU(width, width, kernel_size, dilation) for _ in range(scale - 1))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        passed, *chunks = x.chunk(len(self.blocks) + 1, dim=1)
        outputs = [passed, self.blocks[0](chunks[0], lengths)]
        for block, chunk in zip(self.blocks[1:], chunks[1:], strict=True):
            outputs.append(block(chunk + outputs[-1], lengths))
        return torch.cat(outputs, dim=1)


class SqueezeExcitation(nn.Module):
    """Scale each channel by a gate computed from all channels' means over time."""

    def __init__(self, channels: int, middle: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(channels, middle, 1)
        self.conv2 = nn.Conv1d(middle, channels, 1)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        gate = torch.relu(self.conv1(masked_mean(x, lengths)))
        return x * torch.sigmoid(self.conv2(gate))


class AttentivePooling(nn.Module):
    """Mean and deviation over time with learnt weights for each channel: [B, C, T] -> [B, 2 C, 1]."""

    def __init__(self, channels: int, middle: int) -> None:
        super().__init__()
        self.tdnn = ConvReLU(3 * channels, middle)
        self.conv = nn.Conv1d(middle, channels, 1)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        count = valid_mask(lengths, x.shape[2]).to(x.dtype)
        mean, deviation = _moments(x, count / count.sum(2, keepdim=True))
        context = torch.cat([x, mean.expand_as(x), deviation.expand_as(x)], dim=1)
        scores = self.conv(torch.tanh(self.tdnn(context, lengths)))
        weights = torch.softmax(scores.masked_fill(count == 0, -torch.inf), dim=2)
        return torch.cat(_moments(x, weights), dim=1)


def _moments(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted mean and standard deviation over time, each [B, C, 1]."""
    mean = (weights * x).sum(2, keepdim=True)
    variance = (weights * (x - mean).pow(2)).sum(2, keepdim=True)
    return mean, variance.clamp(min=1e-12).sqrt()
