"""Rows of different lengths in one batch, padded on the right: operations that give each the result it has alone.

Time is the last axis, [B, C, T]; `lengths` int64 [B] is the number of valid steps of each row, at least one.
"""

from __future__ import annotations

import torch
from torch import Tensor


def valid_mask(lengths: Tensor, steps: int) -> Tensor:
    """True for valid steps, False for padding: bool [B, 1, steps]."""
    return torch.arange(steps, device=lengths.device) < lengths[:, None, None]


def zero_padding(x: Tensor, lengths: Tensor) -> Tensor:
    """x with its padding set to zero."""
    return x.masked_fill(~valid_mask(lengths, x.shape[-1]), 0)


def replicate_last(x: Tensor, lengths: Tensor) -> Tensor:
    """x with its padding set to each row's last valid step."""
    steps = torch.arange(x.shape[-1], device=x.device)
    return _take(x, torch.minimum(steps, lengths[:, None] - 1))


def reflect(x: Tensor, lengths: Tensor, left: int, right: int) -> Tensor:
    """Each row reflected at both ends, without repeating the end steps: [B, C, left + T + right].

    Rows must be longer than `left` and `right`. Values more than `right` steps beyond a row's end are undefined.
    """
    steps = torch.arange(-left, x.shape[-1] + right, device=x.device).abs()
    last = lengths[:, None] - 1
    return _take(x, (last - (last - steps).abs()).clamp(min=0))


def masked_mean(x: Tensor, lengths: Tensor) -> Tensor:
    """Mean over the valid steps of each row, [B, C, 1]; summed in float32, like `Tensor.mean`."""
    total = zero_padding(x, lengths).sum(-1, keepdim=True, dtype=torch.float32)
    return (total / lengths[:, None, None]).to(x.dtype)


def _take(x: Tensor, steps: Tensor) -> Tensor:
    """The steps [B, S] of x: [B, C, S]."""
    return x.gather(-1, steps[:, None].expand(-1, x.shape[1], -1))
