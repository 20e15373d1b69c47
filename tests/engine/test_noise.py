"""Counter-based noise: the documented algorithm, uniform, independent over every part of the key."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_batch.engine.noise import frame_keys, gumbel, seed_words, uniform

U32 = 0xFFFFFFFF
SEEDS = st.integers(0, 2**63 - 1)


def mix(x: int) -> int:
    x ^= x >> 16
    x = x * 0x7FEB352D & U32
    x ^= x >> 15
    x = x * 0x846CA68B & U32
    return x ^ x >> 16


def uniform_in_integers(seed: int, frame: int, codebook: int, token: int) -> float:
    """The module docstring's algorithm, without tensors."""
    lo, hi, slot = seed & U32, seed >> 32, 16 * frame + codebook
    a = mix(mix(mix(lo ^ 0x9E3779B9) ^ hi) ^ slot)
    b = mix(mix(mix(hi ^ 0x85EBCA6B) ^ lo) ^ slot)
    bits = mix((mix(a ^ token) + b) & U32)
    return ((bits >> 9) + 0.5) * 2**-23


def draw(seeds: list[int], frames: list[int], codebook: int, vocab: int) -> torch.Tensor:
    keys = frame_keys(seed_words(seeds), torch.tensor(frames))
    return uniform(keys[:, codebook], torch.arange(vocab))


def chi_square_z(values: np.ndarray, bins: int = 256) -> float:
    """How many standard deviations the chi-square statistic of uniform values lies from its mean."""
    counts = np.histogram(values, bins=bins, range=(0, 1))[0]
    expected = values.size / bins
    statistic = ((counts - expected) ** 2 / expected).sum()
    return (statistic - (bins - 1)) / np.sqrt(2 * (bins - 1))


@settings(max_examples=200, deadline=None)
@given(SEEDS, st.integers(0, 32_767), st.integers(0, 15), st.integers(0, 3_071))
def test_tensors_follow_the_documented_algorithm(seed: int, frame: int, codebook: int, token: int) -> None:
    keys = frame_keys(seed_words([seed]), torch.tensor([frame]))
    assert uniform(keys[:, codebook], torch.tensor([token])).item() == uniform_in_integers(seed, frame, codebook, token)


def test_values_stay_fixed() -> None:
    # Published results depend on these: a change here is a change of every sampled clip.
    values = draw([1234, 2**63 - 1], [7, 8191], 15, 4)
    assert (values * 2**23).int().tolist() == [[4549821, 5165425, 6653075, 757724], [1208991, 3945367, 728714, 5618813]]


@given(st.lists(st.tuples(SEEDS, st.integers(0, 8_192)), min_size=1, max_size=9), st.integers(0, 15))
@settings(max_examples=50, deadline=None)
def test_a_row_does_not_see_its_neighbours(rows: list[tuple[int, int]], codebook: int) -> None:
    together = draw([seed for seed, _ in rows], [frame for _, frame in rows], codebook, 33)
    for row, (seed, frame) in zip(together, rows, strict=True):
        assert torch.equal(row, draw([seed], [frame], codebook, 33)[0])


def test_open_interval_even_at_its_ends() -> None:
    lowest, highest = torch.tensor([0, 2**23 - 1]).float().add(0.5).mul(2.0**-23)
    assert 0 < lowest < highest < 1
    values = draw(list(range(200)), [0] * 200, 3, 3_072)
    noise = gumbel(frame_keys(seed_words(list(range(200))), torch.zeros(200, dtype=torch.int64))[:, 3], 3_072)
    assert values.min() > 0 and values.max() < 1
    assert torch.isfinite(noise).all()
    torch.testing.assert_close(noise, -torch.log(-torch.log(values)))
    assert noise.mean().item() == pytest.approx(0.5772, abs=5e-3)
    assert noise.var().item() == pytest.approx(np.pi**2 / 6, abs=2e-2)


CUTS = {
    "seed low word": lambda n: (list(range(n)), [5] * n),
    "seed high word": lambda n: ([i << 32 for i in range(n)], [5] * n),
    "seed bits": lambda n: ([1 << (i % 63) | i << 20 for i in range(n)], [5] * n),
    "frame": lambda n: ([99] * n, list(range(n))),
}


@pytest.mark.parametrize("cut", CUTS)
def test_uniform_along_each_part_of_the_key(cut: str) -> None:
    seeds, frames = CUTS[cut](4_096)
    keys = frame_keys(seed_words(seeds), torch.tensor(frames))
    values = uniform(keys.reshape(-1, 2), torch.arange(8)).reshape(4_096, 16, 8).numpy()
    assert abs(chi_square_z(values)) < 5
    for codebook in range(16):  # a column at a time, where a weak key would show
        assert abs(chi_square_z(values[:, codebook, 0])) < 5
    for axis in range(3):  # neighbours along the key, the codebook and the token
        first, second = np.delete(values, -1, axis).ravel(), np.delete(values, 0, axis).ravel()
        pairs = np.histogram2d(first, second, bins=16, range=[(0, 1), (0, 1)])[0]
        expected = first.size / 256
        assert abs(((pairs - expected) ** 2 / expected).sum() - 255) / np.sqrt(510) < 5
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(first.size)


def test_every_seed_bit_flips_half_of_the_bits() -> None:
    for bit in range(63):
        flipped = (uniform_bits([1 << bit]) ^ uniform_bits([0])).ravel()
        share = np.unpackbits(flipped.view(np.uint8)).sum() / (flipped.size * 23)
        assert abs(share - 0.5) < 0.02, bit


def uniform_bits(seeds: list[int]) -> np.ndarray:
    return (draw(seeds, [3] * len(seeds), 2, 3_072).double() * 2**23).int().numpy()
