"""A residual vector quantizer that learns: codebooks as moving averages, unused entries moved to where they help."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DECAY = 0.98
MIN_USAGE = 0.05  # of an entry's fair share of vectors; below it the entry is placed anew, with NEW_USAGE to begin with
NEW_USAGE = 0.2


class LearningQuantizer(nn.Module):
    """`levels` codebooks, each naming the nearest vector to what the ones before it left over."""

    usage: Tensor
    sums: Tensor

    def __init__(self, levels: int, entries: int, width: int) -> None:
        super().__init__()
        self.register_buffer("usage", torch.ones(levels, entries))
        self.register_buffer("sums", torch.randn(levels, entries, width))

    @property
    def vectors(self) -> Tensor:
        """[levels, entries, width]."""
        return self.sums / self.usage.clamp(min=1e-5)[..., None]

    def forward(self, x: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        """Quantize x [B, T, width], item b with its first depth[b] levels; one of depth 0 stays as it is.

        Returns the result [B, T, width], whose gradient is passed straight to x, and how far x is from it, as a share
        of its variance (a loss).
        """
        residual, total, loss = x, torch.zeros_like(x), x.new_zeros(())
        variance = x.detach().var((0, 1)).mean() + 1e-6
        vectors = self.vectors
        for level in range(len(self.usage)):
            flat = residual.detach().reshape(-1, x.shape[-1])
            codes = nearest(flat, vectors[level])
            chosen = F.embedding(codes, vectors[level]).view_as(x)
            loss = loss + (residual - chosen).pow(2).mean() / variance
            total = total + chosen * (level < depth)[:, None, None]
            residual = residual - chosen
            if self.training:
                self._learn(level, flat, codes)
        total = torch.where((depth == 0)[:, None, None], x.detach(), total)
        return x + (total - x).detach(), loss

    @torch.no_grad()
    def start(self, x: Tensor) -> None:
        """Find the first entries by k-means over vectors [N, width], level by level."""
        for level in range(len(self.usage)):
            vectors = _some(x, self.usage.shape[1])
            for _ in range(10):
                hits = F.one_hot(nearest(x, vectors), len(vectors)).to(x.dtype)
                count = hits.sum(0)[:, None]
                vectors = torch.where(count > 0, hits.T @ x / count.clamp(min=1), vectors)
            self.usage[level] = len(x) / len(vectors)
            self.sums[level] = vectors * self.usage[level][:, None]
            x = x - vectors[nearest(x, vectors)]

    @property
    def perplexity(self) -> Tensor:
        """How many entries of each level [levels] would be in use if all were used alike."""
        share = self.usage / self.usage.sum(-1, keepdim=True)
        return torch.special.entr(share).sum(-1).exp()

    @torch.no_grad()
    def _learn(self, level: int, x: Tensor, codes: Tensor) -> None:
        hits = (codes[:, None] == torch.arange(self.usage.shape[1], device=codes.device)).to(x.dtype)
        usage = torch.lerp(hits.sum(0), self.usage[level], DECAY)
        sums = torch.lerp(hits.T @ x, self.sums[level], DECAY)
        fair = len(x) / len(usage)
        unused = usage < MIN_USAGE * fair
        self.usage[level] = torch.where(unused, NEW_USAGE * fair, usage)
        self.sums[level] = torch.where(unused[:, None], _some(x, len(usage)) * NEW_USAGE * fair, sums)


def nearest(x: Tensor, vectors: Tensor) -> Tensor:
    """Which of the vectors [entries, width] is closest to each of x [N, width]."""
    return torch.addmm(vectors.pow(2).sum(-1), x, vectors.T, alpha=-2).argmin(-1)


def _some(x: Tensor, count: int) -> Tensor:
    return x[torch.randint(len(x), (count,), device=x.device)]
