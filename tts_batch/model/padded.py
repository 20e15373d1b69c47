"""Rows of unlike length in one batch, padded on the right: what makes each come out as if it were alone.

Time is the last axis, [B, C, T]; `lengths` int64 [B] counts the steps of each row that are not padding, at least one.
"""

from __future__ import annotations

import torch
from torch import Tensor


def is_own(lengths: Tensor, steps: int) -> Tensor:
    """True where a step is the row's own, False where it is padding: bool [B, 1, steps]."""
    return torch.arange(steps, device=lengths.device) < lengths[:, None, None]


def zero_padding(x: Tensor, lengths: Tensor) -> Tensor:
    """x with zeros for padding."""
    return x.masked_fill(~is_own(lengths, x.shape[-1]), 0)


def hold_last(x: Tensor, lengths: Tensor) -> Tensor:
    """x with each row's last own step for its padding."""
    steps = torch.arange(x.shape[-1], device=x.device)
    return _take(x, torch.minimum(steps, lengths[:, None] - 1))


def reflect(x: Tensor, lengths: Tensor, left: int, right: int) -> Tensor:
    """Each row mirrored at both its ends, the end steps not doubled: [B, C, left + T + right].

    Rows are longer than `left` and `right`. What comes after `right` steps beyond a row's end has no meaning.
    """
    steps = torch.arange(-left, x.shape[-1] + right, device=x.device).abs()
    last = lengths[:, None] - 1
    return _take(x, (last - (last - steps).abs()).clamp(min=0))


def own_mean(x: Tensor, lengths: Tensor) -> Tensor:
    """Mean of each row's own steps, [B, C, 1]; summed in float32, like `Tensor.mean`."""
    total = zero_padding(x, lengths).sum(-1, keepdim=True, dtype=torch.float32)
    return (total / lengths[:, None, None]).to(x.dtype)


def _take(x: Tensor, steps: Tensor) -> Tensor:
    """The steps [B, S] of x: [B, C, S]."""
    return x.gather(-1, steps[:, None].expand(-1, x.shape[1], -1))
