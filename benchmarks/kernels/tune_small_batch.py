"""Finds the best tile for the products of small_batch.py at the released shapes, in over a minute on two GPUs.

    python -m benchmarks.kernels.tune_small_batch [--out FOLDER] [--check-s 60]

Every tile is compiled and checked in one of many processes; the correct ones are timed one after another on each GPU,
in a CUDA graph over more weights than the L2 cache holds. Prints the best beside the unfused cuBLAS path, and the table
of small_batch.py; FOLDER/small_batch.json has all times.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.kernels.timing import capture, median_ms
from tts_batch.engine.kernels import small_batch as kernels
from tts_batch.engine.kernels.activation import silu_mul
from tts_batch.engine.kernels.norm import add_rms_norm_
from tts_batch.engine.kernels.small_batch import MOST_ROWS, MOST_TILES, TILES, Tile

ROW_BLOCKS = (MOST_ROWS,)  # rows of the batches to tune for
BYTES_IN_TURN = 240e6  # of weights: four times the L2 cache
MOST_COPIES = 40
TILES_A_CASE = 28
TOLERANCE = 6e-3
EPS = 1e-6


@dataclass(frozen=True)
class Product:
    """A product of a released stack; width is that of its result."""

    kind: str
    width: int
    depth: int
    calls: int  # in a frame of the 1.7B model

    @property
    def halves(self) -> int:
        return 2 if self.kind == "gate_up" else 1

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weight."""
        return self.halves * self.width, self.depth

    @property
    def weight_bytes(self) -> int:
        return 2 * math.prod(self.shape)


PRODUCTS = [
    Product("norm_linear", 4096, 1024, 75),
    Product("linear_add", 1024, 2048, 75),
    Product("gate_up", 3072, 1024, 75),
    Product("linear_add", 1024, 3072, 75),
    Product("norm_linear", 4096, 2048, 28),
    Product("linear_add", 2048, 2048, 28),
    Product("gate_up", 6144, 2048, 28),
    Product("linear_add", 2048, 6144, 28),
]


def candidates(product: Product, rows: int) -> list[Tile]:
    """Tiles to try: about one to four programs a multiprocessor, with shared memory for two kernels."""
    tiles = []
    for cols, splits in ((cols, splits) for cols in (16, 32, 64, 128) for splits in (1, 2, 3, 4, 6, 8, 12, 16)):
        length, rest = divmod(product.depth, splits)
        num_tiles = product.width // cols
        if rest or length.bit_count() > 1 or num_tiles > MOST_TILES or not 96 <= num_tiles * splits <= 520:
            continue
        if 2 * length * max(cols * product.halves, rows) <= 2**16:
            tiles += [Tile(cols, splits, warps) for warps in (4, 8)]
    random.Random(0).shuffle(tiles)
    return tiles[:TILES_A_CASE]


class Inputs:
    """Random inputs of a product, with `copies` weights used in rotation."""

    def __init__(self, product: Product, rows: int, copies: int) -> None:
        torch.manual_seed(0)
        self.product, self.copies = product, copies
        self.weights = torch.randn(copies, *product.shape, device="cuda", dtype=torch.bfloat16) * product.depth**-0.5
        self.x = torch.randn(rows, product.depth, device="cuda", dtype=torch.bfloat16)
        self.stream = torch.randn(rows, product.width, device="cuda", dtype=torch.bfloat16)
        self.norm = torch.randn(product.depth, device="cuda", dtype=torch.bfloat16)
        self.next_norm = torch.randn(product.width, device="cuda", dtype=torch.bfloat16)
        self.sums = self.x.float().pow(2).unflatten(1, (32, -1)).sum(2)
        self.arrivals = kernels.make_arrivals(self.x.device)

    def run(self, tile: Tile, copy: int = 0) -> Tensor:
        """The kernel of small_batch.py."""
        weight = self.weights[copy]
        TILES[self.product.shape] = tile
        if self.product.kind == "linear_add":
            kernels.linear_add_(self.x, weight, self.stream, self.arrivals)
            return self.stream
        run = kernels.norm_linear if self.product.kind == "norm_linear" else kernels.norm_gate_up_silu
        return run(self.x, self.sums, self.norm, weight, EPS, self.arrivals)

    def run_unfused(self, copy: int) -> None:
        """The unfused path: cuBLAS and the kernels around it, with the norm that follows a sum."""
        y = F.linear(self.x, self.weights[copy])
        if self.product.kind == "linear_add":
            add_rms_norm_(self.stream, y, self.next_norm, EPS)
        elif self.product.kind == "gate_up":
            silu_mul(y)

    def exact(self) -> Tensor:
        """The result of `run`, in float32."""
        weight, x = self.weights[0].float(), self.x.float()
        if self.product.kind == "linear_add":
            return self.stream.float() + x @ weight.T
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.norm.float()
        return normed @ weight.T if self.product.kind == "norm_linear" else silu_mul_exact(normed @ weight.T)


def silu_mul_exact(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


@torch.inference_mode()
def check(device: int, items: list[tuple[Product, int, Tile]], seconds: float) -> list[str | float]:
    """The relative error of each tile, or its failure. Runs in its own process."""
    deadline = time.monotonic() + seconds
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = False
    found: list[str | float] = []
    for product, rows, tile in items:
        if time.monotonic() > deadline:
            found.append("no time left")
            continue
        try:
            inputs = Inputs(product, rows - 3, 1)
            expected = inputs.exact()
            got = inputs.run(tile)
            found.append(float((got.double() - expected.double()).norm() / expected.double().norm()))
        except Exception as exception:  # too much shared memory, or an illegal access, which fails all later ones too
            found.append(f"{type(exception).__name__}: {' '.join(str(exception).split())[:100]}")
    return found


@torch.inference_mode()
def time_cases(device: int, cases: list[tuple[Product, int, list[Tile]]], seconds: float) -> list[dict[str, object]]:
    """Microseconds of every tile of some cases, and of the unfused path. Runs in its own process."""
    deadline = time.monotonic() + seconds
    torch.cuda.set_device(device)
    results = []
    for product, rows, tiles in cases:
        inputs = Inputs(product, rows, min(MOST_COPIES, math.ceil(BYTES_IN_TURN / product.weight_bytes)))
        unfused_us = graph_us(inputs.run_unfused, inputs.copies)
        times: list[tuple[float, Tile]] = []
        for tile in tiles:
            if time.monotonic() > deadline:
                break
            times.append((graph_us(partial(inputs.run, tile), inputs.copies), tile))
        if not times:
            continue
        times.sort(key=lambda item: item[0])
        best = times[0][1]
        one_us = graph_us(partial(Inputs(product, 1, inputs.copies).run, best), inputs.copies)
        results.append(
            {
                "product": [product.kind, product.width, product.depth],
                "calls": product.calls,
                "rows": rows,
                "floor_us": product.weight_bytes / 4.3e6,
                "unfused_us": unfused_us,
                "one_row_us": one_us,
                "times": [[us, asdict(tile)] for us, tile in times],
            }
        )
        del inputs
        torch.cuda.empty_cache()
    return results


def graph_us(run: Callable[[int], object], copies: int) -> float:
    """The median of one call in microseconds, with the copies of the weights in rotation."""

    def run_all() -> None:
        for copy in range(copies):
            run(copy)

    return 1000 * median_ms(capture(run_all).replay, 6) / copies


def run_in_processes(function: Callable[..., list], arguments: list[tuple], seconds: float) -> list[list]:
    """Run the function in one spawned process per tuple of arguments; a late or failed one returns an empty list."""
    deadline = time.monotonic() + seconds
    with multiprocessing.get_context("spawn").Pool(len(arguments), maxtasksperchild=1) as pool:
        jobs = [pool.apply_async(function, args) for args in arguments]
        outputs = []
        for job in jobs:
            try:
                outputs.append(job.get(timeout=max(0.1, deadline - time.monotonic())))
            except Exception as exception:
                print(f"a process failed: {type(exception).__name__} {str(exception)[:300]}")
                outputs.append([])
        pool.terminate()
    return outputs


def code(tile: Tile) -> str:
    """The source code of a tile."""
    return f"Tile({tile.cols}, {tile.splits}, {tile.num_warps})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--check-s", type=float, default=50)
    parser.add_argument("--time-s", type=float, default=35)
    args = parser.parse_args()
    began = time.monotonic()
    num_devices = torch.cuda.device_count()
    num_processes = min(os.cpu_count() or 1, 16 * num_devices)
    items = [(p, rows, tile) for p in PRODUCTS for rows in ROW_BLOCKS for tile in candidates(p, rows)]
    random.Random(1).shuffle(items)
    slices = [items[i::num_processes] for i in range(num_processes)]
    outputs = run_in_processes(
        check, [(i % num_devices, part, args.check_s) for i, part in enumerate(slices)], args.check_s + 20
    )
    outcomes = [
        (item, outcome)
        for part, output in zip(slices, outputs, strict=True)
        for item, outcome in zip(part, output or ["no output"] * len(part), strict=True)
    ]
    correct = {item for item, outcome in outcomes if isinstance(outcome, float) and outcome < TOLERANCE}
    failures = [(item, outcome) for item, outcome in outcomes if item not in correct]
    print(f"{len(correct)} of {len(items)} tiles are correct, after {time.monotonic() - began:.0f} s")
    for (product, rows, tile), outcome in failures[:12]:
        print(f"  {product.kind} {product.width}x{product.depth}, {rows} rows, {code(tile)}: {outcome}")

    cases = [
        (product, rows, [tile for tile in candidates(product, rows) if (product, rows, tile) in correct])
        for product in PRODUCTS
        for rows in ROW_BLOCKS
    ]
    cases.sort(key=lambda case: -case[0].calls)
    parts = [(i, cases[i::num_devices], args.time_s) for i in range(num_devices)]
    results = [row for output in run_in_processes(time_cases, parts, args.time_s + 20) for row in output]
    results.sort(key=lambda row: (row["rows"], -row["calls"], str(row["product"])))

    print(f"timed after {time.monotonic() - began:.0f} s; microseconds")
    print(f"{'product':24} {'rows':>4} {'floor':>6} {'unfused':>7} {'best':>6} {'1 row':>6}")
    table: dict[tuple[int, int], str] = {}
    for row in results:
        kind, width, depth = row["product"]
        (best_us, best), *others = row["times"]
        print(
            f"{f'{kind} {width}x{depth}':24} {row['rows']:>4} {row['floor_us']:>6.1f} {row['unfused_us']:>7.1f} "
            f"{best_us:>6.1f} {row['one_row_us']:>6.1f}  {code(Tile(**best))}"
            + "".join(f" | {us:.1f} {code(Tile(**tile))}" for us, tile in others[:2])
        )
        table[2 * width if kind == "gate_up" else width, depth] = code(Tile(**best))
    for rows in ROW_BLOCKS:
        of_rows = [row for row in results if row["rows"] == rows]
        unfused_ms, best_ms = (
            sum(row["calls"] * us(row) for row in of_rows) / 1000
            for us in (lambda row: row["unfused_us"], lambda row: row["times"][0][0])
        )
        print(f"{rows} rows: {unfused_ms:.2f} -> {best_ms:.2f} ms a frame, unfused -> fused")
    (args.out / "small_batch.json").write_text(json.dumps({"results": results, "failed": len(failures)}))
    print("TILES = {")
    for shape, tile in table.items():
        print(f"    {shape}: {tile},")
    print(f"}}  # after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
