"""A judge of spectrograms, which learns to tell the decoder's speech from the original while the decoder learns."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WINDOWS = (2048, 1024, 512, 256)
CHANNELS = 32


class Discriminator(nn.Module):
    """One judge for each window size. Each looks at complex spectra, and so at phases too."""

    def __init__(self) -> None:
        super().__init__()
        self.judges = nn.ModuleList(Judge(size) for size in WINDOWS)

    def loss(self, original: Tensor, decoded: Tensor) -> Tensor:
        """What the judges minimise, for audio [B, samples]: originals above 1, decoded speech below -1."""
        losses = []
        for judge in self.judges:
            real, fake = judge(original)[-1], judge(decoded.detach())[-1]
            losses.append(F.relu(1 - real).mean() + F.relu(1 + fake).mean())
        return torch.stack(losses).mean()

    def judge_decoder(self, original: Tensor, decoded: Tensor) -> tuple[Tensor, Tensor]:
        """What the decoder minimises: how well it is seen through, and how unlike the judges' features are."""
        verdicts, features = [], []
        for judge in self.judges:
            with torch.no_grad():
                real = judge(original)
            fake = judge(decoded)
            verdicts.append(-fake[-1].mean())
            distances = [F.l1_loss(a, b) / b.abs().mean() for a, b in zip(fake[:-1], real[:-1], strict=True)]
            features.append(torch.stack(distances).mean())
        return torch.stack(verdicts).mean(), torch.stack(features).mean()


class Judge(nn.Module):
    """Convolutions over time and frequency: audio [B, samples] to the features of every layer, the verdict last."""

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
        self.verdict = norm(nn.Conv2d(CHANNELS, 1, 3, padding=1))

    def forward(self, audio: Tensor) -> list[Tensor]:
        window = self.window / self.window.pow(2).sum().sqrt()
        spectrum = torch.stft(audio, self.size, self.size // 4, window=window, return_complex=True)
        x = torch.view_as_real(spectrum).permute(0, 3, 2, 1)
        features = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.2)
            features.append(x)
        return [*features, self.verdict(x)]
