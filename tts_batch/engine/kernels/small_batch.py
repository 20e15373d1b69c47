"""A decoder layer's products for few rows, with all that lies between two of them: four kernels where there were nine.

With few rows a product is as fast as its weights arrive, so every multiprocessor reads a slab of them. On Hopper a
kernel asks for its slab while the kernel before it still runs (programmatic dependent launch).

A norm needs a sum over the whole row, which no program of the product before it has: each leaves the sum of squares
of its own columns, and the next kernel adds these up. Nothing depends on which program comes first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_batch.engine.kernels.activation import silu_mul
from tts_batch.engine.kernels.backend import (
    early_option,
    jit,
    launches_early,
    next_power_of_2,
    tl,
    triton,
    uses_triton,
)
from tts_batch.engine.kernels.norm import rms_norm
from tts_batch.engine.kernels.small_batch_tiles import Tile, tile_for

_PARTIALS, _ARRIVALS = 2**23, 2**12  # enough for every tile that small_batch_tiles.py gives


@dataclass(frozen=True, slots=True)
class Workspace:
    """What programs that share a tile leave for the last of them. For one stream: a stack has its own."""

    partials: Tensor  # float32
    arrivals: Tensor  # int32, zeros between two kernels

    @classmethod
    def on(cls, device: torch.device) -> Workspace:
        """Allocate it (32 MiB)."""
        return cls(torch.empty(_PARTIALS, device=device), torch.zeros(_ARRIVALS, dtype=torch.int32, device=device))


def square_sums(x: Tensor, parts: int) -> Tensor:
    """[N, H] -> float32 [N, parts]: the sum of squares of each part of a row; `parts` divides H."""
    if not uses_triton(x):
        return x.float().pow(2).unflatten(-1, (parts, -1)).sum(-1)
    rows, hidden = x.shape
    sums = torch.empty(rows, parts, dtype=torch.float32, device=x.device)
    early = launches_early(x.device)
    _square_sums_kernel[(rows,)](
        x, sums, PARTS=parts, PART=hidden // parts, PARTS_BLOCK=next_power_of_2(parts),
        PART_BLOCK=next_power_of_2(hidden // parts), EARLY=early, num_warps=4, **early_option(early),
    )  # fmt: skip
    return sums


def num_parts(weight: Tensor, rows: int) -> int:
    """How many sums `linear_add_` leaves for a row."""
    return weight.shape[0] // _tile("linear_add", weight, weight.shape[0], rows).cols


def norm_linear(
    x: Tensor, sums: Tensor, norm: Tensor, weight: Tensor, eps: float, workspace: Workspace, tile: Tile | None = None
) -> Tensor:
    """The RMS norm of x, rounded as `rms_norm` rounds it, times weight.T.

    Args:
        x: [N, H].
        sums: float32 [N, parts], which add up to each row's sum of squares.
        norm: [H].
        weight: [width, H].

    Returns:
        [N, width].
    """
    if not uses_triton(x):
        return F.linear(_norm_twin(x, sums, norm, eps), weight)
    out = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
    tile = tile or _tile("norm_linear", weight, weight.shape[0], x.shape[0])
    _launch_normed(tile, x, sums, norm, weight, out, eps, workspace)
    return out


def norm_gate_up_silu(
    x: Tensor, sums: Tensor, norm: Tensor, weight: Tensor, eps: float, workspace: Workspace, tile: Tile | None = None
) -> Tensor:
    """As `norm_linear` and `silu_mul` after it: weight is [2 I, H], the gate first; returns [N, I]."""
    if not uses_triton(x):
        return silu_mul(F.linear(_norm_twin(x, sums, norm, eps), weight))
    width = weight.shape[0] // 2
    out = torch.empty(x.shape[0], width, dtype=x.dtype, device=x.device)
    tile = tile or _tile("gate_up", weight, width, x.shape[0])
    _launch_normed(tile, x, sums, norm, weight, out, eps, workspace, is_gated=True)
    return out


def linear_add_(a: Tensor, weight: Tensor, x: Tensor, workspace: Workspace, tile: Tile | None = None) -> Tensor:
    """x += a @ weight.T, in place; the product is rounded to the dtype before the sum, and the sum again.

    Args:
        a: [N, depth].
        weight: [H, depth].
        x: [N, H], the residual stream.

    Returns:
        float32 [N, parts], sums of squares of the new x, for the norm that follows.
    """
    if not uses_triton(x):
        x += F.linear(a, weight)
        return square_sums(x, 1)
    tile = tile or _tile("linear_add", weight, weight.shape[0], x.shape[0])
    sums = torch.empty(x.shape[0], weight.shape[0] // tile.cols, dtype=torch.float32, device=x.device)
    _launch(tile, a, weight, x, workspace, out_sums=sums)
    return sums


def _norm_twin(x: Tensor, sums: Tensor, norm: Tensor, eps: float) -> Tensor:
    rstd = torch.rsqrt(sums.sum(-1, keepdim=True) / x.shape[1] + eps)
    return norm * (x.float() * rstd).to(x.dtype)


def _tile(product: str, weight: Tensor, width: int, rows: int) -> Tile:
    return tile_for(product, width, weight.shape[1], rows, weight.element_size(), _shared_bytes(weight.device))


@cache
def _shared_bytes(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin if device.type == "cuda" else 0


def _launch_normed(
    tile: Tile, x: Tensor, sums: Tensor, norm: Tensor, weight: Tensor, out: Tensor, eps: float, workspace: Workspace,
    is_gated: bool = False,
) -> None:  # fmt: skip
    if tile.norm_apart:
        _launch(tile, rms_norm(x, norm, eps), weight, out, workspace, is_gated=is_gated)
    else:
        _launch(tile, x, weight, out, workspace, norm=norm, sums=sums, eps=eps, is_gated=is_gated)


def _launch(
    tile: Tile, x: Tensor, weight: Tensor, out: Tensor, workspace: Workspace, *, norm: Tensor | None = None,
    sums: Tensor | None = None, out_sums: Tensor | None = None, eps: float = 0.0, is_gated: bool = False,
) -> None:  # fmt: skip
    (rows, depth), width = x.shape, out.shape[1]
    num_cols, num_rows = width // tile.cols, triton.cdiv(rows, tile.rows)
    num_partials = num_rows * tile.rows * weight.shape[0] * tile.splits
    if tile.splits > 1 and (num_partials > _PARTIALS or num_rows * num_cols > _ARRIVALS):
        raise ValueError(f"the workspace is too small for {tile} and {rows} rows of {weight.shape[0]}")
    early = launches_early(x.device)
    parts = 1 if sums is None else sums.shape[1]
    _product_kernel[(num_cols, tile.splits, num_rows)](
        x, norm if norm is not None else x, sums if sums is not None else workspace.partials, weight, out,
        out_sums if out_sums is not None else workspace.partials, workspace.partials, workspace.arrivals, rows, eps,
        WIDTH=width, DEPTH=depth, PARTS=parts, PARTS_BLOCK=next_power_of_2(parts),
        IS_NORMED=norm is not None, IS_GATED=is_gated, IS_ADDED=out_sums is not None,
        ROWS=tile.rows, COLS=tile.cols, STEP=tile.step, SPLITS=tile.splits, HELD=tile.is_held,
        WARPS=tile.num_warps, EARLY=early, num_warps=tile.num_warps, num_stages=tile.num_stages, **early_option(early),
    )  # fmt: skip


@jit
def _square_sums_kernel(
    x_ptr, sums_ptr, PARTS: tl.constexpr, PART: tl.constexpr, PARTS_BLOCK: tl.constexpr, PART_BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS_BLOCK)
    inside = tl.arange(0, PART_BLOCK)
    mask = (part < PARTS)[:, None] & (inside < PART)[None, :]
    x = tl.load(x_ptr + row * PARTS * PART + part[:, None] * PART + inside[None, :], mask=mask, other=0.0)
    x32 = x.to(tl.float32)
    tl.store(sums_ptr + row * PARTS + part, tl.sum(x32 * x32, axis=1), mask=part < PARTS)


@jit
def _prefetch(weight_ptr, DEPTH: tl.constexpr, COLS: tl.constexpr, LENGTH: tl.constexpr, WARPS: tl.constexpr):
    """Ask for LENGTH weights of COLS rows to come into L2: one thread of each warp asks for every so manieth row."""
    warp = tl.arange(0, 32 * WARPS) // 32
    num_bytes: tl.constexpr = LENGTH * (weight_ptr.dtype.element_ty.primitive_bitwidth // 8)
    for i in tl.static_range(COLS // WARPS):
        at = weight_ptr + (warp + i * WARPS) * DEPTH
        tl.inline_asm_elementwise(
            "{.reg .pred p; elect.sync _|p, -1; @p cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;}",
            "=r,l,r", [at.to(tl.int64), tl.full([32 * WARPS], num_bytes, tl.int32)], dtype=tl.int32, is_pure=False,
            pack=1,
        )  # fmt: skip


@jit
def _normed(x, rstd, scale):
    """The norm of x, rounded where the network rounds it."""
    return ((x.to(tl.float32) * rstd).to(x.dtype).to(tl.float32) * scale.to(tl.float32)[None, :]).to(x.dtype)


@jit(do_not_specialize=["rows"])
def _product_kernel(
    x_ptr, norm_ptr, sums_ptr, weight_ptr, out_ptr, out_sums_ptr, partials_ptr, arrivals_ptr, rows, eps,
    WIDTH: tl.constexpr, DEPTH: tl.constexpr, PARTS: tl.constexpr, PARTS_BLOCK: tl.constexpr,
    IS_NORMED: tl.constexpr, IS_GATED: tl.constexpr, IS_ADDED: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, STEP: tl.constexpr, SPLITS: tl.constexpr, HELD: tl.constexpr,
    WARPS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    dtype = out_ptr.dtype.element_ty
    length: tl.constexpr = DEPTH // SPLITS
    looped: tl.constexpr = length - STEP if HELD else length
    start = tl.program_id(1) * length
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    step = tl.arange(0, STEP)
    inside = (row < rows)[:, None]
    norm_at = norm_ptr + start + step
    weight_at = weight_ptr + col[None, :] * DEPTH + start + step[:, None]
    up_at = weight_at + WIDTH * DEPTH
    # All that no kernel writes may come before the wait.
    if EARLY and looped > 0:
        first = weight_ptr + tl.program_id(0) * COLS * DEPTH + start
        _prefetch(first, DEPTH, COLS, length, WARPS)
        if IS_GATED:
            _prefetch(first + WIDTH * DEPTH, DEPTH, COLS, length, WARPS)
    if HELD:
        held = tl.load(weight_at + looped, eviction_policy="evict_first")
        if IS_GATED:
            held_up = tl.load(up_at + looped, eviction_policy="evict_first")
        if IS_NORMED:
            held_scale = tl.load(norm_at + looped)
    if IS_NORMED:
        scale = tl.load(norm_at)
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()

    x_at = x_ptr + row[:, None] * DEPTH + start + step[None, :]
    out_at = out_ptr + row[:, None] * WIDTH + col[None, :]
    if HELD:
        held_x = tl.load(x_at + looped, mask=inside, other=0.0)
    if IS_ADDED:
        residual = tl.load(out_at, mask=inside, other=0.0)
    if IS_NORMED:
        part = tl.arange(0, PARTS_BLOCK)[None, :]
        sums = tl.load(sums_ptr + row[:, None] * PARTS + part, mask=inside & (part < PARTS), other=0.0)
        rstd = tl.rsqrt(tl.sum(sums, axis=1) / DEPTH + eps)[:, None]
    acc = tl.zeros([ROWS, COLS], tl.float32)
    up_acc = tl.zeros([ROWS, COLS], tl.float32)
    for at in range(0, looped, STEP):
        x = tl.load(x_at + at, mask=inside, other=0.0)
        if IS_NORMED:
            x = _normed(x, rstd, scale)
            scale = tl.load(norm_at + at + STEP, mask=start + at + STEP + step < DEPTH, other=0.0)  # of the next step
        acc = tl.dot(x, tl.load(weight_at + at, eviction_policy="evict_first"), acc, input_precision="ieee")
        if IS_GATED:
            up = tl.load(up_at + at, eviction_policy="evict_first")
            up_acc = tl.dot(x, up, up_acc, input_precision="ieee")
    if HELD:
        if IS_NORMED:
            held_x = _normed(held_x, rstd, held_scale)
        acc = tl.dot(held_x, held, acc, input_precision="ieee")
        if IS_GATED:
            up_acc = tl.dot(held_x, held_up, up_acc, input_precision="ieee")

    if SPLITS > 1:
        # The last program of a tile adds up what all of them left, in their order.
        tile = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
        size: tl.constexpr = ROWS * COLS
        size_of_all: tl.constexpr = size * (2 if IS_GATED else 1)
        left = (
            partials_ptr
            + tile * SPLITS * size_of_all
            + (tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :])
        )
        tl.store(left + tl.program_id(1) * size_of_all, acc)
        if IS_GATED:
            tl.store(left + tl.program_id(1) * size_of_all + size, up_acc)
        tl.debug_barrier()
        if tl.atomic_add(arrivals_ptr + tile, 1) != SPLITS - 1:
            return
        tl.store(arrivals_ptr + tile, 0)
        acc = tl.zeros([ROWS, COLS], tl.float32)
        up_acc = tl.zeros([ROWS, COLS], tl.float32)
        for split in tl.static_range(SPLITS):
            acc += tl.load(left + split * size_of_all, cache_modifier=".cg")
            if IS_GATED:
                up_acc += tl.load(left + split * size_of_all + size, cache_modifier=".cg")

    out = acc.to(dtype)
    if IS_GATED:
        gate = out.to(tl.float32)
        silu = (gate / (1.0 + tl.exp(-gate))).to(dtype)
        out = (silu.to(tl.float32) * up_acc.to(dtype).to(tl.float32)).to(dtype)
    if IS_ADDED:
        out = (out.to(tl.float32) + residual.to(tl.float32)).to(dtype)
        out32 = out.to(tl.float32)
        tl.store(out_sums_ptr + row * tl.num_programs(0) + tl.program_id(0), tl.sum(out32 * out32, axis=1), row < rows)
    tl.store(out_at, out, mask=inside)
