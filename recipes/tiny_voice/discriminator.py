"""A discriminator over complex spectra, trained to separate decoded from original speech along with the decoder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WINDOWS = (2048, 1024, 512, 256)
CHANNELS = 32


class Discriminator(nn.Module):
    """A sub-discriminator for each window size, over complex spectra, and so phases too."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(SpectrumDiscriminator(size) for size in WINDOWS)

    def loss(self, original: Tensor, decoded: Tensor) -> Tensor:
        """The discriminator's hinge loss for audio [B, samples]: originals above 1, decoded speech below -1."""
        losses = []
        for part in self.parts:
            real, fake = part(original)[-1], part(decoded.detach())[-1]
            losses.append(F.relu(1 - real).mean() + F.relu(1 + fake).mean())
        return torch.stack(losses).mean()

    def decoder_losses(self, original: Tensor, decoded: Tensor) -> tuple[Tensor, Tensor]:
        """The decoder's adversarial loss and feature-matching loss."""
        scores, features = [], []
        for part in self.parts:
            with torch.no_grad():
                real = part(original)
            fake = part(decoded)
            scores.append(-fake[-1].mean())
            distances = [F.l1_loss(a, b) / b.abs().mean() for a, b in zip(fake[:-1], real[:-1], strict=True)]
            features.append(torch.stack(distances).mean())
        return torch.stack(scores).mean(), torch.stack(features).mean()


class SpectrumDiscriminator(nn.Module):
    """Convolutions over time and frequency: audio [B, samples] to the features of every layer, the score last."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("window", torch.hann_window(size), persistent=False)
        norm = nn.utils.parametrizations.weight_norm
        self.layers = nn.ModuleList([norm(nn.Conv2d(2, CHANNELS, (3, 9), padding=(1, 4)))])
        for dilation in (1, 2, 4):
            padding = (dilation, 4)
            conv = nn.Conv2d(CHANNELS, CHANNELS, (3, 9), stride=(1, 2), dilation=(dilation, 1), padding=padding)
            self.layers.append(norm(conv))
        self.layers.append(norm(nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)))
        self.score = norm(nn.Conv2d(CHANNELS, 1, 3, padding=1))

    def forward(self, audio: Tensor) -> list[Tensor]:
        window = self.window / self.window.pow(2).sum().sqrt()
        spectrum = torch.stft(audio, self.size, self.size // 4, window=window, return_complex=True)
        x = torch.view_as_real(spectrum).permute(0, 3, 2, 1)
        features = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.2)
            features.append(x)
        return [*features, self.score(x)]
