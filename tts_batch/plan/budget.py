"""The expected length of a text, and the number of codec frames after which a row counts as a runaway."""

from __future__ import annotations

import math
from functools import lru_cache

FRAMES_PER_S = 12.5
MIN_BUDGET = 192  # frames: 15 s, so that a short text spoken slowly is not cut
BUDGET_PER_TOKEN = 12  # about three times a normal pace
END_TOKEN_FAILURE_RATE = 0.0034  # of requests, as measured by others on the released Base checkpoint

# Frames of ordinary speech for one text token: estimates from speaking rates and the tokenizer's tokens per word.
_FRAMES_PER_TOKEN = {
    "chinese": 4.4,
    "english": 3.7,
    "french": 2.9,
    "german": 3.0,
    "italian": 2.7,
    "japanese": 2.8,
    "korean": 2.8,
    "portuguese": 2.9,
    "russian": 2.7,
    "spanish": 2.8,
}
_USUAL = _FRAMES_PER_TOKEN["english"]
TINY_FRAMES_PER_TOKEN = 2.1  # of the small vocabulary of `tiny`, about 2.2 characters a token


@lru_cache(maxsize=4096)
def plan_frames(
    num_text_tokens: int, language: str | None, limit: int, frames_per_token: float | None = None
) -> tuple[int, int]:
    """Return the expected frames, at a normal pace, and the budget, frames of 80 ms.

    The budget is max(192, 12 × tokens), more for languages with more speech a token, at most `limit`.

    `frames_per_token` is the model's own, where its tokenizer is not the released models'.
    """
    if frames_per_token is None:
        frames_per_token = _FRAMES_PER_TOKEN.get(language or "", _USUAL)
    expected = max(1, math.ceil(num_text_tokens * frames_per_token))
    factor = max(1.0, frames_per_token / _USUAL)
    budget = max(MIN_BUDGET, math.ceil(BUDGET_PER_TOKEN * factor * num_text_tokens))
    return expected, min(budget, limit)
