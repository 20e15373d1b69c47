"""Spectrogram discriminators, trained with the decoder to distinguish its speech from the original."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WINDOWS = (2048, 1024, 512, 256)
CHANNELS = 32


class Discriminator(nn.Module):
    """One discriminator for each window size. Each sees complex spectra, and so phases too."""

    def __init__(self) -> None:
        super().__init__()
        self.discriminators = nn.ModuleList(SpectrogramDiscriminator(size) for size in WINDOWS)

    def loss(self, original: Tensor, decoded: Tensor) -> Tensor:
        """The hinge loss of the discriminators for audio [B, samples]: originals above 1, decoded speech below -1."""
        losses = []
        for discriminator in self.discriminators:
            real, fake = discriminator(original)[-1], discriminator(decoded.detach())[-1]
            losses.append(F.relu(1 - real).mean() + F.relu(1 + fake).mean())
        return torch.stack(losses).mean()

    def decoder_losses(self, original: Tensor, decoded: Tensor) -> tuple[Tensor, Tensor]:
        """What the decoder minimises: its adversarial loss, and how far its features are from the original's."""
        scores, features = [], []
        for discriminator in self.discriminators:
            with torch.no_grad():
                real = discriminator(original)
            fake = discriminator(decoded)
            scores.append(-fake[-1].mean())
            distances = [F.l1_loss(a, b) / b.abs().mean() for a, b in zip(fake[:-1], real[:-1], strict=True)]
            features.append(torch.stack(distances).mean())
        return torch.stack(scores).mean(), torch.stack(features).mean()


class SpectrogramDiscriminator(nn.Module):
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
