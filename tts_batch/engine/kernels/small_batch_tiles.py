"""How the kernels of small_batch.py cut their products: measured tiles for the released shapes, a rule for others."""

from __future__ import annotations

from dataclasses import dataclass

ROW_BUCKETS = (16, 32, 64)  # rows of a tile
MIN_PROGRAMS = 128  # about one for each multiprocessor of an H200
MEASURED_SHARED_BYTES = 227 * 1024  # of a block on an H200, where the tiles below were measured


@dataclass(frozen=True, slots=True)
class Tile:
    """How a product [rows, depth] @ [width, depth].T is cut."""

    rows: int
    cols: int
    step: int  # of the depth, at a time
    splits: int = 1  # programs that share the depth of a tile
    num_warps: int = 4
    num_stages: int = 4
    is_held: bool = False  # the weights of the last step wait in registers for what they are multiplied with
    norm_apart: bool = False  # a kernel before it makes the norm: every program would have to make it again


TILES: dict[tuple[str, int, int], tuple[Tile, Tile, Tile]] = {}
"""(product, width, depth) -> the tile of each row bucket; bfloat16 on an H200."""


def tile_for(product: str, width: int, depth: int, rows: int, element_bytes: int, shared_bytes: int) -> Tile:
    """The tile of a product: `product` is "norm_linear", "gate_up" or "linear_add"; width is that of its result."""
    bucket = next((i for i, most in enumerate(ROW_BUCKETS) if rows <= most), len(ROW_BUCKETS) - 1)
    measured = TILES.get((product, width, depth))
    if measured is not None and element_bytes == 2 and shared_bytes >= MEASURED_SHARED_BYTES:
        return measured[bucket]
    return default_tile(width, depth, ROW_BUCKETS[bucket], element_bytes)


def default_tile(width: int, depth: int, rows: int, element_bytes: int) -> Tile:
    """Enough programs to keep the memory busy, and little shared memory."""
    widths = [cols for cols in (64, 32, 16) if width % cols == 0]
    cols = next((cols for cols in widths if width // cols >= MIN_PROGRAMS), widths[-1])
    step = next(step for step in (64, 32, 16) if depth % step == 0 and step * element_bytes <= 128)
    splits = 1
    while width // cols * splits < MIN_PROGRAMS and splits < 8 and depth % (2 * splits * step) == 0:
        splits *= 2
    return Tile(rows, cols, step, splits, num_warps=4 if cols > 16 else 2, num_stages=3)


def can_cut(width: int, depth: int) -> bool:
    """Whether there is a tile at all."""
    return width % 16 == 0 and depth % 16 == 0
