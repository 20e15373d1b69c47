"""Padded rows against each row alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_batch.model.padded import masked_mean, reflect, replicate_last, valid_mask, zero_padding

LENGTHS = st.lists(st.integers(5, 40), min_size=1, max_size=5)


def rows(lengths: list[int], padding: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise [B, 3, longest + padding], and the lengths."""
    x = torch.randn(len(lengths), 3, max(lengths) + padding, generator=torch.Generator().manual_seed(0))
    return x, torch.tensor(lengths)


@settings(deadline=None)
@given(LENGTHS, st.integers(0, 9))
def test_padding_values(lengths: list[int], padding: int) -> None:
    x, counts = rows(lengths, padding)
    zeroed, held, own = zero_padding(x, counts), replicate_last(x, counts), valid_mask(counts, x.shape[2])
    for i, length in enumerate(lengths):
        alone, beyond = x[i, :, :length], x.shape[2] - length
        assert own[i, 0].tolist() == [True] * length + [False] * beyond
        assert torch.equal(zeroed[i], F.pad(alone, (0, beyond)))
        assert torch.equal(held[i], F.pad(alone, (0, beyond), mode="replicate"))


@settings(deadline=None)
@given(LENGTHS, st.integers(0, 9), st.integers(0, 4), st.integers(0, 4))
def test_reflection_starts_at_the_end_of_each_row(lengths: list[int], padding: int, left: int, right: int) -> None:
    x, counts = rows(lengths, padding)
    reflected = reflect(x, counts, left, right)
    assert reflected.shape == (len(lengths), 3, left + x.shape[2] + right)
    for i, length in enumerate(lengths):
        alone = F.pad(x[i, :, :length], (left, right), mode="reflect")
        assert torch.equal(reflected[i, :, : left + length + right], alone)


@settings(deadline=None)
@given(LENGTHS)
def test_means_cover_valid_steps_only(lengths: list[int]) -> None:
    x, counts = rows(lengths, 7)
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 1e-2)):
        means = masked_mean(x.to(dtype), counts)
        assert means.dtype == dtype
        for i, length in enumerate(lengths):
            alone = x[i, :, :length].to(dtype).mean(1, keepdim=True)
            torch.testing.assert_close(means[i], alone, atol=tolerance, rtol=0)
