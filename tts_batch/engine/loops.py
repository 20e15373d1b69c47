"""Detects, while a clip is decoded, that it is no longer speech: the same few first codes repeat.

Two runs are counted, frame by frame, against the 16 first codes before:

    repeats   consecutive frames that repeat the frame `lag` frames ago, for each lag 1..16: an n-gram that loops
    few       frames whose code occurred in the last 16; one whose code did not takes FRESH off the run.
              It counts only once the text is used up. Silence, hum and hiss are such runs.

Speech does neither for six seconds. Runner v2 counts in kernels/frame.py, runner v1 with the functions here.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NUM_LAGS = 16
FRESH = 4


@dataclass(frozen=True, slots=True)
class LoopLimits:
    """How long a run may get; a row that reaches a limit ends as "loop". 0 turns a detector off."""

    repeated_frames: int = 75
    few_codes_frames: int = 75


DEFAULT_LIMITS = LoopLimits()


def count_loops(
    code0: Tensor, previous: Tensor, text_is_over: Tensor, repeats: Tensor, few: Tensor
) -> tuple[Tensor, Tensor]:
    """Both runs with one frame more.

    Args:
        code0: [N], the frame's first codes.
        previous: [N, 16], the first codes before it, the latest first; -1 where there is none.
        text_is_over: bool [N].
        repeats: int32 [N, 16], so far; few: int32 [N], so far.

    Returns:
        The new repeats and few.
    """
    same = previous == code0[:, None]
    repeats = torch.where(same, repeats + 1, 0)
    few = torch.where(same.any(dim=1), few + 1, (few - FRESH).clamp(min=0))
    return repeats, torch.where(text_is_over, few, 0)


def is_loop(repeats: Tensor, few: Tensor, limits: LoopLimits) -> Tensor:
    """bool [N]: which rows have reached a limit."""
    looping = torch.zeros_like(few, dtype=torch.bool)
    if limits.repeated_frames:
        looping |= repeats.amax(dim=1) >= limits.repeated_frames
    if limits.few_codes_frames:
        looping |= few >= limits.few_codes_frames
    return looping
