"""Causal convolutions of the codec, channels last, as one matrix product with everything that follows it fused in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_batch.engine.kernels.backend import capability, jit, launch_fitting, tl, triton, uses_triton

if triton is not None:
    from triton.language.extra import libdevice
    from triton.tools.tensor_descriptor import TensorDescriptor

    _HAS_FAST_COSINE = tl.constexpr(not triton.knobs.runtime.interpret and torch.version.hip is None)


@dataclass(frozen=True, slots=True)
class Conv:
    """y[t] = bias + sum over taps k of x[t - dilation * (taps - 1 - k)] @ weight[k * C_in : (k + 1) * C_in].

    weight [taps * C_in, C_out], bias float32 [C_out]; x is zero before the first row.
    """

    weight: Tensor
    bias: Tensor
    taps: int = 1
    dilation: int = 1


@dataclass(frozen=True, slots=True)
class Snake:
    """x + height * (1 - cos(frequency * x)) by channel, which is x + 2 height * sin²(frequency / 2 * x).

    One cosine costs what one sine does and spares the square. Both float32 [C].
    """

    frequency: Tensor
    height: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.height * (1 - torch.cos(self.frequency * x))


@dataclass(frozen=True, slots=True)
class Ends:
    """How many frames each sequence of a padded batch has, int32 [B], and how many with its padding."""

    frames: Tensor
    padded_to: int


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program computes: `rows` outputs by `cols` + `more_cols` channels, `depth` products at a step.

    Sizes are powers of two; a width like 192 is cut as 128 + 64, two products that share the tile of x. A tile may be
    wider than what is left of the channels. With `resident` programs a multiprocessor, each computes tile after tile
    and loads the next one while it finishes the last.
    """

    rows: int
    cols: int
    more_cols: int = 0
    depth: int = 64
    num_warps: int = 8
    num_stages: int = 3
    resident: int = 0

    @property
    def shared_bytes(self) -> int:
        """About what it takes of a multiprocessor: operands in 16 bits for all stages but one, and some kilobytes."""
        return (self.num_stages - 1) * 2 * self.depth * (self.rows + self.cols + self.more_cols) + 8_192


def causal_conv(
    x: Tensor, conv: Conv, *, residual: Tensor | None = None, snake: Snake | None = None, keep: bool = True,
    ends: Ends | None = None, tile: Tile | None = None, out_dtype: torch.dtype | None = None,
) -> tuple[Tensor | None, Tensor | None]:  # fmt: skip
    """Convolve [B, T, C_in], add the residual [B, T, C_out], and give the sum and its Snake, each [B, T, C_out].

    The sum is None unless `keep`, the Snake is None without `snake`; both start from the unrounded float32 sum.
    What lies behind `ends`, where given, may stay uncomputed: nothing before it looks there.
    """
    batch, length, c_in = x.shape
    c_out = conv.weight.shape[1]
    if not _on_tensor_cores(x, conv):
        return _twin(x, conv, residual, snake, keep, out_dtype or x.dtype)
    out = torch.empty(batch, length, c_out, dtype=out_dtype or x.dtype, device=x.device) if keep else None
    snaked = torch.empty(batch, length, c_out, dtype=x.dtype, device=x.device) if snake else None

    def launch(tile: Tile) -> None:
        num_tiles = batch * triton.cdiv(length, tile.rows) * triton.cdiv(c_out, tile.cols + tile.more_cols)
        num_programs = min(num_tiles, tile.resident * _multiprocessors(x.device)) if tile.resident else num_tiles
        _conv_kernel[(num_programs,)](
            *_operands(x, conv.weight, tile), conv.bias, residual, *_parameters(snake), out, snaked,
            *_row_ends(ends, length, tile), batch, length, num_tiles, DESCRIBED=has_copy_engine(x.device),
            C_IN=c_in, C_OUT=c_out, TAPS=conv.taps, DILATION=conv.dilation, PERSISTENT=tile.resident > 0,
            **_constants(tile),
        )  # fmt: skip

    # Inputs, outputs and residual take shared memory too, by their presence and their dtypes.
    key = ("causal_conv", x.device, x.dtype, out_dtype, c_in, c_out, conv.taps, keep, snake is None, residual is None)
    if tile is not None:
        launch(tile)
    elif not launch_fitting(key, tiles_for(c_in, c_out, conv.taps, shared_bytes(x.device)), launch):
        return _twin(x, conv, residual, snake, keep, out_dtype or x.dtype)
    return out, snaked


# Released shapes by (C_in, C_out, taps), measured on an H200 with Triton 3.6: benchmarks/log.md, 2026-11-30.
TILES: dict[tuple[int, int, int], Tile] = {
    (1024, 2048, 1): Tile(128, 256, resident=1),
    (4096, 1024, 1): Tile(128, 256, resident=1),
    (1024, 1536, 7): Tile(128, 256, resident=1),
    (1536, 6144, 2): Tile(128, 256, more_cols=128),
    (768, 768, 7): Tile(128, 128),
    (768, 768, 1): Tile(128, 256, resident=1),
    (768, 1920, 2): Tile(256, 128, resident=1),
    (384, 384, 7): Tile(128, 128),
    (384, 384, 1): Tile(128, 128, num_warps=4),
    (384, 768, 2): Tile(128, 256, resident=1),
    (192, 192, 7): Tile(256, 128, more_cols=64),
    (192, 192, 1): Tile(128, 64, num_warps=4),
    (192, 288, 2): Tile(128, 64, more_cols=32, num_warps=4),
    (96, 96, 7): Tile(128, 64, more_cols=32, depth=32, num_warps=4, num_stages=4),
    (96, 96, 1): Tile(64, 64, more_cols=32, depth=32, num_warps=4),
    (1536, 16, 2): Tile(128, 16, depth=128, num_warps=4),
}


@cache
def tiles_for(c_in: int, c_out: int, taps: int, shared_bytes: int = 2**20) -> tuple[Tile, ...]:
    """The tiles of a shape that may fit a card's shared memory, the fastest first, each of less than the one before."""
    best, plain = tile_for(c_in, c_out, taps), _plain_tile(c_in, c_out)
    *tiles, last = dict.fromkeys((best, replace(best, num_stages=2), plain, replace(plain, num_stages=2)))
    return (*(tile for tile in tiles if tile.shared_bytes <= shared_bytes), last)


def tile_for(c_in: int, c_out: int, taps: int) -> Tile:
    """The measured tile of a released shape, or one that fits any widths that are multiples of 16."""
    if tile := TILES.get((c_in, c_out, taps)):
        return tile
    return _plain_tile(c_in, c_out)


def _plain_tile(c_in: int, c_out: int) -> Tile:
    cols = min(128, c_out & -c_out)
    tile = Tile(128, cols, depth=min(64, c_in & -c_in), num_warps=8 if cols > 64 else 4)
    return replace(tile, cols=64, more_cols=32) if c_out % 96 == 0 and cols == 32 else tile


def _on_tensor_cores(x: Tensor, conv: Conv) -> bool:
    """Kernels need multiples of 16 channels; the tiny test models have fewer."""
    return uses_triton(x) and x.shape[2] % 16 == 0 and conv.weight.shape[1] % 16 == 0


def _operands(x: Tensor, weight: Tensor, tile: Tile) -> tuple[Any, Any, Any]:
    """x, and the weight for both runs of columns: for the copy engine, and where there is none, as they are.

    A descriptor fills what lies outside the tensor with zeros: the padding on the left costs nothing.
    """
    if not has_copy_engine(x.device):
        return x, weight, weight
    return (
        TensorDescriptor.from_tensor(x, [1, tile.rows, tile.depth]),
        TensorDescriptor.from_tensor(weight, [tile.depth, tile.cols]),
        TensorDescriptor.from_tensor(weight, [tile.depth, tile.more_cols or tile.cols]),
    )


def has_copy_engine(device: torch.device) -> bool:
    """Whether tiles are copied by descriptors made on the host, from sm90 on."""
    return capability(device) >= (9, 0)


@cache
def shared_bytes(device: torch.device) -> int:
    """Most shared memory of a program; without a limit on what is no CUDA device."""
    if device.type != "cuda":
        return 2**20
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 2**20))


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _parameters(snake: Snake | None) -> tuple[Tensor | None, Tensor | None]:
    return (snake.frequency, snake.height) if snake else (None, None)


def _row_ends(ends: Ends | None, length: int, tile: Tile) -> tuple[Tensor | None, int]:
    """The frames of each sequence and the rows of a frame. Programs that stay load ahead, and skip nothing."""
    return (ends.frames, length // ends.padded_to) if ends and not tile.resident else (None, 1)


def _constants(tile: Tile) -> dict[str, int]:
    return {
        "ROWS": tile.rows, "COLS": tile.cols, "MORE": tile.more_cols, "DEPTH": tile.depth,
        "num_warps": tile.num_warps, "num_stages": tile.num_stages,
    }  # fmt: skip


def _twin(
    x: Tensor, conv: Conv, residual: Tensor | None, snake: Snake | None, keep: bool, out_dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    span = conv.dilation * (conv.taps - 1)
    padded = F.pad(x, (0, 0, span, 0))
    taps = [padded[:, k * conv.dilation : k * conv.dilation + x.shape[1]] for k in range(conv.taps)]
    y = (torch.cat(taps, dim=2) @ conv.weight).float() + conv.bias
    if residual is not None:
        y = y + residual
    return y.to(out_dtype) if keep else None, snake(y).to(x.dtype) if snake else None


@jit
def _by_channel(ptr, cols, C: tl.constexpr):
    return tl.load(ptr + cols, mask=cols < C, other=0.0)[None, :]


@jit
def _snake(x, frequency_ptr, height_ptr, cols, C: tl.constexpr):
    angle = x * _by_channel(frequency_ptr, cols, C)
    # The hardware's cosine is good to 1e-6, far below bfloat16; the exact one would cost more than the product.
    cosine = libdevice.fast_cosf(angle) if _HAS_FAST_COSINE else tl.cos(angle)
    return x + _by_channel(height_ptr, cols, C) * (1.0 - cosine)


@jit
def _accumulate(
    x_desc, weight_desc, more_desc, batch, row, col, C_IN: tl.constexpr, TAPS: tl.constexpr, DILATION: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, MORE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Products of all taps for rows [row, row + ROWS) and the two runs of columns from col; float32."""
    steps_per_tap: tl.constexpr = C_IN // DEPTH
    acc = tl.zeros((ROWS, COLS), tl.float32)
    more = tl.zeros((ROWS, MORE), tl.float32) if MORE > 0 else acc
    for step in range(TAPS * steps_per_tap):
        shift = (TAPS - 1 - step // steps_per_tap) * DILATION
        x = x_desc.load([batch, row - shift, (step % steps_per_tap) * DEPTH]).reshape(ROWS, DEPTH)
        acc = tl.dot(x, weight_desc.load([step * DEPTH, col]), acc)
        if MORE > 0:
            more = tl.dot(x, more_desc.load([step * DEPTH, col + COLS]), more)
    return acc, more


@jit
def _finish(
    acc, batch, first_row, first_col, length, bias_ptr, residual_ptr, frequency_ptr, height_ptr, out_ptr, snaked_ptr,
    ROWS: tl.constexpr, COLS: tl.constexpr, C_OUT: tl.constexpr,
):  # fmt: skip
    """Bias, residual, Snake and stores of one accumulated tile."""
    start = batch.to(tl.int64) * length * C_OUT
    rows = first_row + tl.arange(0, ROWS)
    cols = first_col + tl.arange(0, COLS)
    at = rows[:, None] * C_OUT + cols[None, :]
    inside = (rows < length)[:, None] & (cols < C_OUT)[None, :]
    y = acc + _by_channel(bias_ptr, cols, C_OUT)
    if residual_ptr is not None:
        y += tl.load(residual_ptr + start + at, mask=inside, other=0.0).to(tl.float32)
    if out_ptr is not None:
        tl.store(out_ptr + start + at, y.to(out_ptr.dtype.element_ty), mask=inside)
    if snaked_ptr is not None:
        y = _snake(y, frequency_ptr, height_ptr, cols, C_OUT)
        tl.store(snaked_ptr + start + at, y.to(snaked_ptr.dtype.element_ty), mask=inside)


@jit(do_not_specialize=["rows_per_frame", "batch_size", "length", "num_tiles"])
def _conv_kernel(
    x_desc, weight_desc, more_desc, bias_ptr, residual_ptr, frequency_ptr, height_ptr, out_ptr, snaked_ptr, ends_ptr,
    rows_per_frame, batch_size, length, num_tiles, DESCRIBED: tl.constexpr, C_IN: tl.constexpr, C_OUT: tl.constexpr,
    TAPS: tl.constexpr, DILATION: tl.constexpr, PERSISTENT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    MORE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    if not DESCRIBED:  # described here, where the last stride is known to be 1, so that loads are wide and asynchronous
        x_desc = tl.make_tensor_descriptor(
            x_desc, [batch_size, length, C_IN], [length * C_IN, C_IN, 1], [1, ROWS, DEPTH]
        )
        more_desc = tl.make_tensor_descriptor(
            more_desc, [TAPS * C_IN, C_OUT], [C_OUT, 1], [DEPTH, MORE if MORE > 0 else COLS]
        )
        weight_desc = tl.make_tensor_descriptor(weight_desc, [TAPS * C_IN, C_OUT], [C_OUT, 1], [DEPTH, COLS])
    # Neighbouring tiles share rows of x, the larger operand, and so find them in the L2 cache.
    num_col_tiles: tl.constexpr = (C_OUT + COLS + MORE - 1) // (COLS + MORE)
    num_row_tiles = tl.cdiv(length, ROWS)
    if ends_ptr is not None:  # each program has one tile
        batch = tl.program_id(0) // num_col_tiles // num_row_tiles
        row = (tl.program_id(0) // num_col_tiles % num_row_tiles) * ROWS
        if row >= tl.load(ends_ptr + batch) * rows_per_frame:
            return
    for tile in tl.range(tl.program_id(0), num_tiles, tl.num_programs(0), flatten=PERSISTENT):
        col = (tile % num_col_tiles) * (COLS + MORE)
        row = (tile // num_col_tiles % num_row_tiles) * ROWS
        batch = tile // num_col_tiles // num_row_tiles
        acc, more = _accumulate(
            x_desc, weight_desc, more_desc, batch, row, col, C_IN, TAPS, DILATION, ROWS, COLS, MORE, DEPTH
        )
        _finish(
            acc, batch, row, col, length, bias_ptr, residual_ptr, frequency_ptr, height_ptr, out_ptr, snaked_ptr,
            ROWS, COLS, C_OUT,
        )  # fmt: skip
        if MORE > 0:
            _finish(
                more, batch, row, col + COLS, length, bias_ptr, residual_ptr, frequency_ptr, height_ptr, out_ptr,
                snaked_ptr, ROWS, MORE, C_OUT,
            )  # fmt: skip
