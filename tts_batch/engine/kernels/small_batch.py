"""A narrow decoder layer's products for few rows, with all that lies between two of them.

With few rows a product is as fast as its weights arrive. So every program takes the one slab of weights that it needs
into registers while the kernel before it still runs (programmatic dependent launch). The programs that share a tile's
depth leave their sums, and the last of them finishes the tile.

A norm needs a sum over the whole row, which no program of the product before it has: each tile leaves the sum of
squares of its own columns, and the next kernel adds these up. Nothing depends on which program comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_batch.engine.kernels.activation import silu_mul
from tts_batch.engine.kernels.backend import capability, jit, launches_early, tl, uses_triton

MOST_ROWS = 16  # with more, cuBLAS and the kernels around it are as fast; see benchmarks/log.md
MOST_TILES = 512  # that a product may be cut into, as many as `make_arrivals` has counters


@dataclass(frozen=True, slots=True)
class Tile:
    """A program has `cols` columns of the result and one of `splits` parts of the depth, which is a power of two."""

    cols: int
    splits: int
    num_warps: int


TILES = {
    (4096, 1024): Tile(64, 2, 8),
    (1024, 2048): Tile(32, 4, 4),
    (6144, 1024): Tile(64, 4, 4),
    (1024, 3072): Tile(64, 6, 8),
}
"""The shape of a weight -> how it is cut: the layers of the code predictor and of the 0.6B talker, as
benchmarks/kernels/tune_small_batch.py found them on an H200. Wider layers gain nothing."""


def has_tiles(*weights: Tensor) -> bool:
    """Whether all of a layer's products were measured: their shapes, two bytes a weight, on Hopper."""
    return all(
        tuple(weight.shape) in TILES and weight.element_size() == 2 and is_hopper(weight.device) for weight in weights
    )


def is_hopper(device: torch.device) -> bool:
    """Whether a device is of the generation that the tiles were measured on."""
    return capability(device)[0] == 9


def make_arrivals(device: torch.device) -> Tensor:
    """Counters of the programs that are done with a tile, zeros between two kernels. They serve one stream."""
    return torch.zeros(MOST_TILES, dtype=torch.int32, device=device)


def norm_linear(x: Tensor, sums: Tensor, norm: Tensor, weight: Tensor, eps: float, arrivals: Tensor) -> Tensor:
    """The RMS norm of x, rounded as `rms_norm` rounds it, times weight.T.

    Args:
        x: [N, H].
        sums: float32 [N, parts], which add up to each row's sum of squares; `parts` is a power of two.
        norm: [H].
        weight: [width, H].
        arrivals: see `make_arrivals`.

    Returns:
        [N, width].
    """
    if not uses_triton(x):
        return F.linear(_norm_twin(x, sums, norm, eps), weight)
    out = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
    _launch(x, weight, out, arrivals, norm=norm, sums=sums, eps=eps)
    return out


def norm_gate_up_silu(x: Tensor, sums: Tensor, norm: Tensor, weight: Tensor, eps: float, arrivals: Tensor) -> Tensor:
    """As `norm_linear` and `silu_mul` after it: weight is [2 I, H], the gate first; returns [N, I]."""
    if not uses_triton(x):
        return silu_mul(F.linear(_norm_twin(x, sums, norm, eps), weight))
    out = torch.empty(x.shape[0], weight.shape[0] // 2, dtype=x.dtype, device=x.device)
    _launch(x, weight, out, arrivals, norm=norm, sums=sums, eps=eps)
    return out


def linear_add_(a: Tensor, weight: Tensor, x: Tensor, arrivals: Tensor) -> Tensor:
    """x += a @ weight.T, in place; the product is rounded to the dtype before the sum, and the sum again.

    Args:
        a: [N, depth].
        weight: [H, depth].
        x: [N, H], the residual stream.
        arrivals: see `make_arrivals`.

    Returns:
        float32 [N, parts], sums of squares of the new x, for the norm that follows.
    """
    if not uses_triton(x):
        x += F.linear(a, weight)
        return x.float().pow(2).sum(-1, keepdim=True)
    sums = torch.empty(x.shape[0], x.shape[1] // _tile(weight).cols, dtype=torch.float32, device=x.device)
    _launch(a, weight, x, arrivals, norm=None, sums=sums, eps=0.0)
    return sums


def _norm_twin(x: Tensor, sums: Tensor, norm: Tensor, eps: float) -> Tensor:
    rstd = torch.rsqrt(sums.sum(-1, keepdim=True) / x.shape[1] + eps)
    return norm * (x.float() * rstd).to(x.dtype)


def _tile(weight: Tensor) -> Tile:
    return TILES[weight.shape[0], weight.shape[1]]


def _launch(
    x: Tensor, weight: Tensor, out: Tensor, arrivals: Tensor, *, norm: Tensor | None, sums: Tensor, eps: float
) -> None:
    """With a norm, `sums` are of x; without one they are written, and the product is added to `out`."""
    (rows, depth), width = x.shape, out.shape[1]
    if rows > MOST_ROWS:
        raise ValueError(f"{rows} rows are more than {MOST_ROWS}")
    tile = _tile(weight)
    partials = torch.empty(tile.splits * MOST_ROWS * weight.shape[0], dtype=torch.float32, device=x.device)
    early = launches_early(x.device)
    _product_kernel[(width // tile.cols, tile.splits)](
        x, x if norm is None else norm, sums, weight, out, partials, arrivals, rows, eps,
        WIDTH=width, DEPTH=depth, PARTS=sums.shape[1], IS_ADDED=norm is None, IS_GATED=weight.shape[0] != width,
        ROWS=MOST_ROWS, COLS=tile.cols, LENGTH=depth // tile.splits, SPLITS=tile.splits, EARLY=early,
        num_warps=tile.num_warps, **({"launch_pdl": True} if early else {}),  # Triton knows the option on CUDA only
    )  # fmt: skip


@jit(do_not_specialize=["rows"])
def _product_kernel(
    x_ptr, norm_ptr, sums_ptr, weight_ptr, out_ptr, partials_ptr, arrivals_ptr, rows, eps,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, PARTS: tl.constexpr, IS_ADDED: tl.constexpr, IS_GATED: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, LENGTH: tl.constexpr, SPLITS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    dtype = out_ptr.dtype.element_ty
    tile, split = tl.program_id(0), tl.program_id(1)
    row = tl.arange(0, ROWS)[:, None]
    col = tile * COLS + tl.arange(0, COLS)[None, :]
    depth = split * LENGTH + tl.arange(0, LENGTH)
    inside = row < rows
    weight_at = weight_ptr + col * DEPTH + depth[:, None]
    # What no kernel writes, before the wait.
    weight = tl.load(weight_at, eviction_policy="evict_first")
    if IS_GATED:
        up_weight = tl.load(weight_at + WIDTH * DEPTH, eviction_policy="evict_first")
    if not IS_ADDED:
        norm = tl.load(norm_ptr + depth)[None, :]
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()

    out_at = out_ptr + row * WIDTH + col
    x = tl.load(x_ptr + row * DEPTH + depth[None, :], mask=inside, other=0.0)
    if IS_ADDED:
        residual = tl.load(out_at, mask=inside, other=0.0)
    else:
        sums = tl.load(sums_ptr + row * PARTS + tl.arange(0, PARTS)[None, :], mask=inside, other=0.0)
        rstd = tl.rsqrt(tl.sum(sums, axis=1) / DEPTH + eps)[:, None]
        # Rounded where the network rounds it.
        x = ((x.to(tl.float32) * rstd).to(dtype).to(tl.float32) * norm.to(tl.float32)).to(dtype)
    size: tl.constexpr = ROWS * COLS
    size_of_all: tl.constexpr = size * (2 if IS_GATED else 1)
    left_at = partials_ptr + tile * SPLITS * size_of_all + row * COLS + tl.arange(0, COLS)[None, :]
    own_at = left_at + split * size_of_all
    tl.store(own_at, tl.dot(x, weight, input_precision="ieee"))
    if IS_GATED:
        tl.store(own_at + size, tl.dot(x, up_weight, input_precision="ieee"))
    tl.debug_barrier()
    if tl.atomic_add(arrivals_ptr + tile, 1) != SPLITS - 1:
        return

    # The last program of a tile adds up what all of them left, in their order.
    tl.store(arrivals_ptr + tile, 0)
    acc = tl.zeros([ROWS, COLS], tl.float32)
    up_acc = tl.zeros([ROWS, COLS], tl.float32)
    for i in tl.static_range(SPLITS):
        acc += tl.load(left_at + i * size_of_all, cache_modifier=".cg")
        if IS_GATED:
            up_acc += tl.load(left_at + i * size_of_all + size, cache_modifier=".cg")
    out = acc.to(dtype)
    if IS_GATED:
        gate = out.to(tl.float32)
        silu = (gate / (1.0 + tl.exp(-gate))).to(dtype)
        out = (silu.to(tl.float32) * up_acc.to(dtype).to(tl.float32)).to(dtype)
    if IS_ADDED:
        out = (out.to(tl.float32) + residual.to(tl.float32)).to(dtype)
        out32 = out.to(tl.float32)
        tl.store(sums_ptr + row * PARTS + tile, tl.sum(out32 * out32, axis=1, keep_dims=True), mask=inside)
    tl.store(out_at, out, mask=inside)
