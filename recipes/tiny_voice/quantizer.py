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
        self.register_buffer("usage", torch.zeros(levels, entries))
        self.register_buffer("sums", torch.zeros(levels, entries, width))
        self.started = False  # the first vectors become the entries

    @property
    def vectors(self) -> Tensor:
        """[levels, entries, width]."""
        return self.sums / self.usage.clamp(min=1e-5)[..., None]

    def forward(self, x: Tensor, depth: Tensor) -> tuple[Tensor, Tensor]:
        """Quantize x [B, T, width], item b with its first depth[b] levels.

        Returns the result [B, T, width], whose gradient is passed straight to x, and the distance to draw x closer by
        (a loss).
        """
        residual, total, loss = x, torch.zeros_like(x), x.new_zeros(())
        for level in range(len(self.usage)):
            flat = residual.detach().reshape(-1, x.shape[-1])
            if self.training and not self.started:
                self.usage[level], self.sums[level] = 1, _some(flat, self.usage.shape[1])
            vectors = self.vectors[level]
            codes = torch.cdist(flat, vectors).argmin(-1)
            chosen = F.embedding(codes, vectors).view_as(x)
            active = (level < depth)[:, None, None]
            loss = loss + ((residual - chosen).pow(2) * active).mean()
            total = total + chosen * active
            residual = residual - chosen
            if self.training:
                self._learn(level, flat, codes)
        self.started |= self.training
        return x + (total - x).detach(), loss

    @property
    def perplexity(self) -> Tensor:
        """How many entries of each level [levels] would be in use if all were used alike."""
        share = self.usage / self.usage.sum(-1, keepdim=True)
        return torch.special.entr(share).sum(-1).exp()

    @torch.no_grad()
    def _learn(self, level: int, x: Tensor, codes: Tensor) -> None:
        hits = F.one_hot(codes, self.usage.shape[1]).to(x.dtype)
        usage = torch.lerp(hits.sum(0), self.usage[level], DECAY)
        sums = torch.lerp(hits.T @ x, self.sums[level], DECAY)
        fair = len(x) / len(usage)
        unused = usage < MIN_USAGE * fair
        self.usage[level] = torch.where(unused, NEW_USAGE * fair, usage)
        self.sums[level] = torch.where(unused[:, None], _some(x, len(usage)) * NEW_USAGE * fair, sums)


def _some(x: Tensor, count: int) -> Tensor:
    return x[torch.randint(len(x), (count,), device=x.device)]
