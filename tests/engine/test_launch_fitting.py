"""A kernel that a device cannot hold is launched smaller, and then not at all."""

from __future__ import annotations

import itertools

import pytest

from tts_batch.engine.kernels.backend import launch_fitting
from tts_batch.engine.kernels.causal_conv import TILES, tiles_for

keys = (f"kernel {i}" for i in itertools.count())


@pytest.mark.parametrize(("fitting", "launched"), [(3, [3]), (1, [3, 2, 1]), (0, [3, 2, 1])])
def test_the_first_that_fits_is_launched_and_the_others_are_not_tried_again(
    fitting: int, launched: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    tried = []

    def launch(size: int) -> None:
        tried.append(size)
        if size > fitting:
            raise MemoryError(f"{size} is too large")

    key = next(keys)
    assert launch_fitting(key, (3, 2, 1), launch, MemoryError) == (fitting > 0)
    assert tried == launched
    assert len(caplog.messages) == sum(size > fitting for size in launched)
    caplog.clear()
    tried.clear()
    assert launch_fitting(key, (3, 2, 1), launch, MemoryError) == (fitting > 0)
    assert tried == ([fitting] if fitting else [])
    assert not caplog.messages


def test_an_error_of_another_kind_passes() -> None:
    def launch(size: int) -> None:
        raise ValueError("a wrong argument")

    with pytest.raises(ValueError, match="a wrong argument"):
        launch_fitting(next(keys), (1,), launch, MemoryError)


@pytest.mark.parametrize("shape", TILES)
def test_every_released_convolution_ends_with_a_tile_that_fits_every_card(shape: tuple[int, int, int]) -> None:
    """Two operands for each stage, in bfloat16, in the 99 KB of sm86, sm89 and sm120."""
    first, *_, last = tiles_for(*shape)
    assert first == TILES[shape]
    assert last.num_stages * 2 * last.depth * (last.rows + last.cols + last.more_cols) <= 101_376
