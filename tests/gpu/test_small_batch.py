"""The kernels for few rows against their torch twins, in every way to cut them, and a stack with and without them.

On a machine without CUDA: TRITON_INTERPRET=1 runs them in Python.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.gpu.test_kernels import DEVICE, assert_near, randn
from tts_batch.engine import packed
from tts_batch.engine.kernels import activation, norm, small_batch
from tts_batch.engine.kernels.small_batch import Workspace, linear_add_, norm_gate_up_silu, norm_linear, square_sums
from tts_batch.engine.kernels.small_batch_tiles import TILES, Tile, can_cut, default_tile, tile_for
from tts_batch.engine.packed import PackedStack
from tts_batch.model.config import StackConfig
from tts_batch.model.layers import DecoderStack

HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # Triton's interpreter has no bfloat16
DTYPES = [torch.float32, HALF]
EPS = 1e-6
H200 = 227 * 1024
CUTS = [
    None,
    Tile(16, 32, 32),
    Tile(16, 16, 32, num_warps=2, num_stages=3),
    Tile(16, 16, 64, splits=4),
    Tile(32, 32, 64, splits=2, is_held=True),
    Tile(16, 32, 256, is_held=True),
    Tile(64, 64, 128, splits=2, is_held=True),
    Tile(16, 32, 64, norm_apart=True),
]


def without_kernels(patch: pytest.MonkeyPatch) -> None:
    for module in (activation, norm, small_batch):
        patch.setattr(module, "uses_triton", lambda x: False)


@pytest.fixture
def workspace() -> Workspace:
    return Workspace.on(torch.device(DEVICE))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("hidden", "parts"), [(96, 3), (1024, 64), (2048, 1)])
def test_square_sums(dtype: torch.dtype, hidden: int, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = randn(5, hidden, dtype=dtype)
    got = square_sums(x, parts)
    without_kernels(monkeypatch)
    assert_near(got, square_sums(x, parts), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 16, 37, 70])
@pytest.mark.parametrize("tile", CUTS)
def test_products(
    dtype: torch.dtype, rows: int, tile: Tile | None, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    depth, width = 256, 192
    x, weight, gate_up = randn(rows, depth, dtype=dtype), randn(width, depth, dtype=dtype), randn(384, 256, dtype=dtype)
    norm_weight = randn(depth, dtype=dtype)
    stream = randn(rows, width, dtype=dtype)
    results = []
    for run_twin in (False, True):
        if run_twin:
            without_kernels(monkeypatch)
        added = stream.clone()
        sums = square_sums(x, 4)
        new_sums = linear_add_(x, weight, added, workspace, tile)
        results.append(
            (
                norm_linear(x, sums, norm_weight, weight, EPS, workspace, tile),
                norm_gate_up_silu(x, sums, norm_weight, gate_up, EPS, workspace, tile),
                added,
                new_sums.sum(1),
            )
        )
    for got, want in zip(*results, strict=True):
        assert_near(got, want, dtype)
    assert not workspace.arrivals.any()  # the next kernel finds them as this one did


@pytest.mark.parametrize("tile", [cut for cut in CUTS if cut is not None])
def test_a_row_is_the_same_in_any_company(tile: Tile, workspace: Workspace) -> None:
    x, weight, stream = (randn(*size, dtype=HALF) for size in ((70, 256), (192, 256), (70, 192)))
    outs: list[tuple[Tensor, ...]] = []
    for rows in (70, 70, 9):
        added = stream[:rows].clone()
        new_sums = linear_add_(x[:rows].clone(), weight, added, workspace, tile)
        out = norm_linear(x[:rows].clone(), square_sums(x[:rows], 4), x[0], weight, EPS, workspace, tile)
        outs.append((added[:9], new_sums[:9], out[:9]))
    for other in outs[1:]:
        assert all(torch.equal(got, want) for got, want in zip(other, outs[0], strict=True))


def make_stack(layers: int) -> DecoderStack:
    torch.manual_seed(3)
    config = StackConfig(
        hidden_size=128, intermediate_size=192, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, rms_norm_eps=EPS, rope_theta=1e4,
    )  # fmt: skip
    return DecoderStack(config).to(DEVICE, HALF)


@torch.inference_mode()
@pytest.mark.parametrize("rows", [1, 16, 20])
def test_a_stack_with_and_without(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    served = []
    monkeypatch.setattr(packed, "linear_add_", lambda *args: served.append(args) or linear_add_(*args))
    stack = PackedStack(make_stack(layers=3), 8, small_batch=16)
    assert stack.workspace is not None
    x = randn(rows, 128, dtype=HALF)
    streams, hidden = [], []
    for limit in (16, 0):
        stack.small_batch = limit
        streams.append(x.clone())
        hidden.append(stack.forward(streams[-1], lambda layer_idx, qkv: qkv[:, : 4 * 32].contiguous()))
    assert_near(streams[0], streams[1], HALF)
    assert_near(hidden[0], hidden[1], HALF)
    assert len(served) == (6 if rows <= 16 else 0)  # two sums a layer, and only up to the limit


@torch.inference_mode()
def test_a_width_that_cannot_be_cut_goes_without() -> None:
    stack = make_stack(layers=1)
    stack.layers[0].mlp.down_proj.weight.data = randn(128, 200, dtype=HALF)
    assert PackedStack(stack, 8).workspace is None


def test_a_released_shape(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = randn(3, 1024, dtype=HALF), randn(64, 1024, dtype=HALF, scale=0.03)
    sums, norm_weight = square_sums(x, 8), randn(1024, dtype=HALF)
    got = norm_linear(x, sums, norm_weight, weight, EPS, workspace)
    without_kernels(monkeypatch)
    assert_near(got, norm_linear(x, sums, norm_weight, weight, EPS, workspace), HALF)


def test_every_tile_fits_its_product() -> None:
    measured = [(key, tile) for key, tiles in TILES.items() for tile in tiles]
    ruled = [
        (("", width, depth), default_tile(width, depth, rows, element_bytes))
        for width, depth in ((4096, 2048), (1024, 3072), (2048, 6144), (6144, 2048), (64, 64), (160, 96), (48, 16))
        for rows in (16, 32, 64)
        for element_bytes in (2, 4)
    ]
    for (_, width, depth), tile in measured + ruled:
        assert can_cut(width, depth)
        assert width % tile.cols == 0
        assert depth % (tile.step * tile.splits) == 0
        assert tile.cols % tile.num_warps == 0  # each warp asks for as many rows


def test_measured_tiles_are_for_what_they_were_measured_on() -> None:
    for (product, width, depth), tiles in TILES.items():
        assert [tile.rows for tile in tiles] == [16, 32, 64]
        assert tile_for(product, width, depth, 1, 2, H200) is tiles[0]
        assert tile_for(product, width, depth, 400, 2, H200) is tiles[2]
        assert tile_for(product, width, depth, 1, 4, H200) == default_tile(width, depth, 16, 4)
        assert tile_for(product, width, depth, 17, 2, 99 * 1024) == default_tile(width, depth, 32, 2)
