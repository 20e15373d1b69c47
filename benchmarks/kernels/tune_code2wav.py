"""Finds the best tile for every convolution of the codec's decoder; `bench_code2wav.py --tune` runs it.

Tiles are compiled and checked in many short-lived processes, so that an illegal memory access ends only its own. The
correct tiles are then timed one after another.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Self

import torch
from torch import Tensor

from tts_batch.engine.kernels import causal_conv as kernels
from tts_batch.engine.kernels.causal_conv import Conv, Snake, Tile, causal_conv

BATCH, FRAMES = 16, 100
PROCESSES = 16
TILES_A_PROCESS = 3
TOLERANCE = 5e-3
DILATION = 3

Outcome = float | str  # the relative error of a tile, or its failure

# THIRDS are for multiples of 192; NARROW splits 96 as 64 + 32, or leaves a quarter of 128 empty.
WIDE = [
    Tile(128, 128), Tile(128, 128, resident=2), Tile(128, 128, num_stages=4),
    Tile(128, 256), Tile(128, 256, resident=1), Tile(128, 256, num_stages=4), Tile(128, 256, depth=128, num_stages=2),
    Tile(256, 128), Tile(256, 128, resident=1),
]  # fmt: skip
THIRDS = [
    Tile(128, 128, 64), Tile(128, 128, 64, resident=1), Tile(128, 128, 64, num_stages=2), Tile(256, 128, 64),
    Tile(128, 256, 128),
]  # fmt: skip
HALVES = [Tile(128, 128), Tile(128, 128, resident=2), Tile(256, 128), Tile(256, 128, resident=1)]
NARROW = [
    Tile(128, 128, 0, 32, 8, 4), Tile(128, 128, 0, 32, 8, 4, resident=2), Tile(256, 128, 0, 32, 8, 4),
    Tile(128, 64, 32, 32, 4, 4), Tile(128, 64, 32, 32, 4, 6), Tile(128, 64, 32, 32, 8, 4),
    Tile(128, 64, 32, 32, 4, 4, resident=3), Tile(256, 64, 32, 32, 8, 4),
]  # fmt: skip


@dataclass(frozen=True)
class Layer:
    """A convolution and the tiles to try. `rows` are those of one frame."""

    name: str
    c_in: int
    c_out: int
    taps: int
    rows: int
    calls: int
    tiles: list[Tile] = field(repr=False, hash=False)
    snake: bool = True
    keep: bool = True
    residual: bool = False

    @property
    def flop(self) -> float:
        """Operations of one call at BATCH x FRAMES."""
        return 2.0 * BATCH * FRAMES * self.rows * self.taps * self.c_in * self.c_out

    def prepare(self, batch: int, length: int) -> tuple[Callable[[Tile], list[Tensor]], Callable[[], list[Tensor]]]:
        """The kernel as a function of a tile, and its float32 reference on the same random values."""
        torch.manual_seed(0)
        x = torch.randn(batch, length, self.c_in, device="cuda").bfloat16()
        conv, snake = _random_conv(self.c_in, self.c_out, self.taps), _random_snake(self.c_out)
        residual = torch.randn(batch, length, self.c_out, device="cuda").bfloat16() if self.residual else None
        options = {"residual": residual, "snake": snake if self.snake else None, "keep": self.keep}
        out_dtype = torch.float32 if self.c_out == 16 else torch.bfloat16
        return (
            lambda tile: _given(causal_conv(x, conv, **options, tile=tile, out_dtype=out_dtype)),
            lambda: _given(kernels._twin(x.float(), _float(conv), out_dtype=torch.float32, **options)),
        )


def _random_conv(c_in: int, c_out: int, taps: int) -> Conv:
    weight = torch.randn(taps * c_in, c_out, device="cuda") / (taps * c_in) ** 0.5
    return Conv(weight.bfloat16(), 0.3 * torch.randn(c_out, device="cuda"), taps, DILATION)


def _random_snake(width: int) -> Snake:
    frequency, height = (0.3 * torch.randn(2, width, device="cuda")).exp()
    return Snake(2 * frequency, height / 2)


def _float(conv: Conv) -> Conv:
    return replace(conv, weight=conv.weight.float())


def _given(results: tuple[Tensor | None, ...]) -> list[Tensor]:
    return [result for result in results if result is not None]


def relative_error(result: Tensor, expected: Tensor) -> float:
    """The norm of the difference over the norm of the expected result."""
    return float((result.double() - expected.double()).norm() / expected.double().norm())


def short(tile: Tile) -> str:
    """A short name of a tile."""
    cols = f"{tile.cols}+{tile.more_cols}" if tile.more_cols else str(tile.cols)
    return f"{tile.rows}x{cols}x{tile.depth} w{tile.num_warps} s{tile.num_stages} r{tile.resident}"


LAYERS = [
    Layer("upsample", 1024, 2048, 1, 2, 2, WIDE, snake=False),
    Layer("narrow", 4096, 1024, 1, 4, 2, WIDE, snake=False, residual=True),
    Layer("first", 1024, 1536, 7, 4, 1, WIDE + THIRDS, keep=False),
    Layer("up1", 1536, 6144, 2, 4, 1, WIDE + THIRDS),
    Layer("wide768", 768, 768, 7, 32, 3, WIDE + THIRDS, keep=False),
    Layer("point768", 768, 768, 1, 32, 3, WIDE + THIRDS, residual=True),
    Layer("up2", 768, 1920, 2, 32, 1, HALVES + THIRDS),
    Layer("wide384", 384, 384, 7, 160, 3, HALVES + THIRDS, keep=False),
    Layer("point384", 384, 384, 1, 160, 3, HALVES + THIRDS, residual=True),
    Layer("up3", 384, 768, 2, 160, 1, WIDE + THIRDS),
    Layer("wide192", 192, 192, 7, 640, 3, [*THIRDS[:4], Tile(128, 64, num_warps=4)], keep=False),
    Layer("point192", 192, 192, 1, 640, 3, [*THIRDS[:4], Tile(128, 64, num_warps=4)], residual=True),
    Layer(
        "up4", 192, 288, 2, 640, 1,
        [Tile(128, 64, 32, num_warps=4), Tile(128, 64, 32), Tile(128, 256, 32), Tile(256, 64, 32), Tile(128, 128)],
    ),
    Layer("wide96", 96, 96, 7, 1920, 3, NARROW, keep=False),
    Layer("point96", 96, 96, 1, 1920, 3, NARROW, residual=True),
    Layer(
        "last", 1536, 16, 2, 120, 1,
        [
            Tile(128, 16, num_warps=4, num_stages=4), Tile(64, 16, num_warps=4, num_stages=5),
            Tile(128, 16, depth=128, num_warps=4),
        ],
        snake=False,
    ),
]  # fmt: skip


def check(layer: Layer, tiles: list[Tile]) -> list[Outcome]:
    """The relative error of each tile, or its failure. Runs in its own process."""
    torch.backends.cuda.matmul.allow_tf32 = False
    found: list[Outcome] = []
    for tile in tiles:
        try:
            run, exact = layer.prepare(3, layer.rows * 40 - 5)  # the last rows fill no tile
            expected = exact()
            error = max(relative_error(got, want) for got, want in zip(run(tile), expected, strict=True))
            layer.prepare(BATCH, layer.rows * FRAMES)[0](tile)
            torch.cuda.synchronize()
            found.append(error)
        except Exception as exception:  # too much shared memory, or an illegal access, which fails all later ones too
            found.append(f"{type(exception).__name__}: {' '.join(str(exception).split())[:120]}")
    return found


class Checks:
    """A context manager that runs all checks in parallel processes; leaving it ends those still running."""

    def __enter__(self) -> Self:
        self._pool = multiprocessing.get_context("spawn").Pool(PROCESSES, maxtasksperchild=1)
        self._jobs = []
        for layer in LAYERS:
            for at in range(0, len(layer.tiles), TILES_A_PROCESS):
                tiles = layer.tiles[at : at + TILES_A_PROCESS]
                self._jobs.append((layer, tiles, self._pool.apply_async(check, (layer, tiles))))
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.terminate()

    def outcomes(self, seconds: float) -> list[tuple[Layer, Tile, Outcome]]:
        """Wait for all checks, at most `seconds`."""
        deadline = time.monotonic() + seconds
        outcomes: list[tuple[Layer, Tile, Outcome]] = []
        for layer, tiles, job in self._jobs:
            try:
                found = job.get(timeout=max(0.01, deadline - time.monotonic()))
            except Exception as exception:  # late, or its process died
                found = [f"{type(exception).__name__} {exception}"] * len(tiles)
            outcomes += [(layer, tile, outcome) for tile, outcome in zip(tiles, found, strict=True)]
        return outcomes


def tune(outcomes: list[tuple[Layer, Tile, Outcome]], graph_us: Callable[[Callable[[], object]], float]) -> list[str]:
    """Time every correct tile, put the best ones into the table, and return a report."""
    lines: list[str] = []
    best: dict[Layer, tuple[float, Tile]] = {}
    for layer in LAYERS:
        run, _ = layer.prepare(BATCH, layer.rows * FRAMES)
        torch.cuda.empty_cache()
        for tile, outcome in [(tile, outcome) for of, tile, outcome in outcomes if of is layer]:
            if isinstance(outcome, str) or not outcome < TOLERANCE:  # NaN is not
                lines.append(f"{layer.name:9s} {short(tile):27s} FAILED {outcome}")
                continue
            us = graph_us(lambda run=run, tile=tile: run(tile))
            speed = f"{us:8.1f} us {layer.flop / us / 1e6:4.0f} TFLOP/s"
            lines.append(f"{layer.name:9s} {short(tile):27s} {speed} error {outcome:.1e}")
            if layer not in best or us < best[layer][0]:
                best[layer] = us, tile
    lines.append("best:")
    for layer, (us, tile) in best.items():
        lines.append(
            f"{layer.name:9s} {short(tile):27s} {us:8.1f} us {layer.flop / us / 1e6:4.0f} TFLOP/s"
            f" x{layer.calls} = {us * layer.calls / (BATCH * FRAMES):6.3f} us/frame"
        )
        kernels.TILES[layer.c_in, layer.c_out, layer.taps] = tile
    return lines


def table() -> list[str]:
    """The current table as source code."""
    lines = ["TILES: dict[tuple[int, int, int], Tile] = {"]
    lines += [f"    {key}: {_code(tile)}," for key, tile in kernels.TILES.items()]
    return [*lines, "}"]


def _code(tile: Tile) -> str:
    changed = [f"{f.name}={getattr(tile, f.name)}" for f in fields(tile)[2:] if getattr(tile, f.name) != f.default]
    return f"Tile({', '.join([str(tile.rows), str(tile.cols), *changed])})"
