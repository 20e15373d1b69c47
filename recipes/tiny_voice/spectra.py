"""Spectral losses between waveforms, and the log-mel outline that the codes must predict."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FFT_SIZES = (2048, 1024, 512, 256, 128)
OUTLINE_SIZES = {1024: 80, 256: 40}  # mels: one window resolves pitch, the other time
OUTLINE_HOP = 240
OUTLINE_WIDTH = sum(OUTLINE_SIZES.values())


class SpectralLoss(nn.Module):
    """Mean distance of log mel and of linear magnitudes, over several window sizes."""

    def __init__(self) -> None:
        super().__init__()
        for size in FFT_SIZES:
            self.register_buffer(f"window_{size}", torch.hann_window(size), persistent=False)
            self.register_buffer(f"filters_{size}", _mel_filters(size, min(128, size // 16)), persistent=False)

    def forward(self, decoded: Tensor, original: Tensor) -> Tensor:
        losses = []
        for size in FFT_SIZES:
            window = getattr(self, f"window_{size}")
            ours, theirs = (_magnitudes(audio, size, size // 4, window) for audio in (decoded, original))
            filters = getattr(self, f"filters_{size}")
            for a, b in ((filters @ ours, filters @ theirs), (ours, theirs)):
                losses.append(F.l1_loss(_log(a), _log(b)))
            energy = theirs.pow(2).sum((1, 2)).clamp(min=1e-3)
            losses.append((((ours - theirs).pow(2).sum((1, 2)) + 1e-6) / energy).sqrt().mean())
        return torch.stack(losses).sum() / len(FFT_SIZES)


class Outline(nn.Module):
    """Log mels every 10 ms: audio [B, samples] to [B, samples / 240, OUTLINE_WIDTH]."""

    def __init__(self) -> None:
        super().__init__()
        for size, mels in OUTLINE_SIZES.items():
            self.register_buffer(f"window_{size}", torch.hann_window(size), persistent=False)
            self.register_buffer(f"filters_{size}", _mel_filters(size, mels), persistent=False)

    def forward(self, audio: Tensor) -> Tensor:
        parts = []
        for size in OUTLINE_SIZES:
            magnitudes = _magnitudes(audio, size, OUTLINE_HOP, getattr(self, f"window_{size}"))
            parts.append(_log(getattr(self, f"filters_{size}") @ magnitudes))
        return torch.cat(parts, 1)[..., :-1].transpose(1, 2)


def _magnitudes(audio: Tensor, size: int, hop: int, window: Tensor) -> Tensor:
    spectrum = torch.stft(audio, size, hop, window=window, return_complex=True)
    return torch.view_as_real(spectrum).pow(2).sum(-1).add(1e-8).sqrt()


def _log(magnitudes: Tensor) -> Tensor:
    return magnitudes.clamp(min=1e-2).log()


def _mel_filters(size: int, mels: int) -> Tensor:
    """Triangles [mels, bins], evenly spaced in mels."""
    top = 2595 * torch.log10(torch.tensor(1 + 12_000 / 700))
    edges = 700 * (10 ** (torch.linspace(0, 1, mels + 2) * top / 2595) - 1)
    bins = torch.linspace(0, 12_000, size // 2 + 1)
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    triangles = torch.minimum(rising, falling).clamp(min=0)
    return triangles / triangles.sum(-1, keepdim=True).clamp(min=0.5)
