"""A residual vector quantizer fitted by k-means, level by level."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROUNDS = 20  # of k-means


class FoundQuantizer(nn.Module):
    """`levels` codebooks, each quantizing the residual of those before it."""

    vectors: Tensor

    def __init__(self, levels: int, entries: int, width: int) -> None:
        super().__init__()
        self.register_buffer("vectors", torch.zeros(levels, entries, width))

    @torch.no_grad()
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Quantize x [..., width]: codes int64 [levels, ...] and the quantized vectors [..., width]."""
        residual, codes = x.flatten(0, -2), []
        for vectors in self.vectors:
            codes.append(nearest(residual, vectors))
            residual = residual - vectors[codes[-1]]
        return torch.stack(codes).view(-1, *x.shape[:-1]), x - residual.view_as(x)

    @torch.no_grad()
    def find(self, x: Tensor) -> None:
        """Find the entries of every level from vectors [N, width]."""
        for level, found in enumerate(self.vectors):
            vectors = _some(x, len(found))
            for _ in range(ROUNDS):
                hits = F.one_hot(nearest(x, vectors), len(vectors)).to(x.dtype)
                count = hits.sum(0)[:, None]
                # An entry that is nearest to nothing is placed anew.
                vectors = torch.where(count > 0, hits.T @ x / count.clamp(min=1), _some(x, len(vectors)))
            self.vectors[level] = vectors
            x = x - vectors[nearest(x, vectors)]


def nearest(x: Tensor, vectors: Tensor) -> Tensor:
    """The index of the vector [entries, width] closest to each of x [N, width]."""
    return torch.addmm(vectors.pow(2).sum(-1), x, vectors.T, alpha=-2).argmin(-1)


def _some(x: Tensor, count: int) -> Tensor:
    return x[torch.randint(len(x), (count,), device=x.device)]
