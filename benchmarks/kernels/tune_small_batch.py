"""Finds the best tile for the products of small_batch.py at the released shapes; takes over a minute on two GPUs.

    python benchmarks/kernels/tune_small_batch.py [--out FOLDER] [--check-s 60]

Every tile is compiled and checked in one of many processes, then the right ones are timed, one after another on each
GPU, in a CUDA graph over more weights than the L2 cache holds. Prints the best beside cuBLAS and the kernels that it
needs around it; FOLDER/small_batch.json gets every time, and the table that bench_frame.py --tiles reads.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_batch.engine.kernels import small_batch as kernels
from tts_batch.engine.kernels.activation import silu_mul
from tts_batch.engine.kernels.norm import add_rms_norm_
from tts_batch.engine.kernels.small_batch import Workspace
from tts_batch.engine.kernels.small_batch_tiles import ROW_BUCKETS, Tile

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
    def weight_bytes(self) -> int:
        return 2 * self.halves * self.width * self.depth


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
    """Tiles worth a try: about one to four programs a multiprocessor, two kernels in its shared memory."""
    tiles = []
    for cols, splits in ((cols, splits) for cols in (16, 32, 64, 128) for splits in (1, 2, 3, 4, 6, 8, 12)):
        length, rest = divmod(product.depth, splits)
        if rest or product.width % cols or not 96 <= product.width // cols * splits <= 520:
            continue
        warps = 2 if cols == 16 else 4
        held_bytes = 2 * length * max(cols * product.halves, rows)
        apart = [False] if product.kind == "linear_add" else [True] if rows == 64 else [False, True]
        if length & (length - 1) == 0 and length <= 1024 and held_bytes <= 2**16:
            tiles += [Tile(rows, cols, length, splits, 4, 1, True, norm_apart) for norm_apart in apart]
            tiles += [Tile(rows, cols, length, splits, 8, 1, True, norm_apart) for norm_apart in apart if cols > 32]
        for step, stages in ((64, 6), (128, 4), (256, 3)):
            shared = 2 * stages * step * (rows + cols * product.halves)
            if length % step == 0 and length >= 2 * step and shared <= 112 * 1024:
                tiles += [Tile(rows, cols, step, splits, warps, stages, False, norm_apart) for norm_apart in apart]
    random.Random(0).shuffle(tiles)
    held, looped = ([tile for tile in tiles if tile.is_held is is_held] for is_held in (True, False))
    num_held = min(len(held), max(TILES_A_CASE // 2, TILES_A_CASE - len(looped)))
    return held[:num_held] + looped[: TILES_A_CASE - num_held]


class Inputs:
    """Random inputs of a product, with `copies` weights that take turns."""

    def __init__(self, product: Product, rows: int, copies: int) -> None:
        torch.manual_seed(0)
        self.product, self.copies = product, copies
        size = (copies, product.halves * product.width, product.depth)
        self.weights = torch.randn(size, device="cuda", dtype=torch.bfloat16) * product.depth**-0.5
        self.x = torch.randn(rows, product.depth, device="cuda", dtype=torch.bfloat16)
        self.stream = torch.randn(rows, product.width, device="cuda", dtype=torch.bfloat16)
        self.norm = torch.randn(product.depth, device="cuda", dtype=torch.bfloat16)
        self.next_norm = torch.randn(product.width, device="cuda", dtype=torch.bfloat16)
        self.sums = kernels.square_sums(self.x, 32)
        self.workspace = Workspace.on(self.x.device)

    def run(self, tile: Tile | None, copy: int = 0) -> Tensor:
        """The kernel of small_batch.py."""
        weight = self.weights[copy]
        if self.product.kind == "linear_add":
            kernels.linear_add_(self.x, weight, self.stream, self.workspace, tile)
            return self.stream
        run = kernels.norm_linear if self.product.kind == "norm_linear" else kernels.norm_gate_up_silu
        return run(self.x, self.sums, self.norm, weight, EPS, self.workspace, tile)

    def run_apart(self, copy: int) -> None:
        """The same without it, and with the norm that follows a sum: cuBLAS and the kernels around it."""
        y = F.linear(self.x, self.weights[copy])
        if self.product.kind == "linear_add":
            add_rms_norm_(self.stream, y, self.next_norm, EPS)
        elif self.product.kind == "gate_up":
            silu_mul(y)

    def exact(self) -> Tensor:
        """What `run` gives, in float32."""
        weight, x = self.weights[0].float(), self.x.float()
        if self.product.kind == "linear_add":
            return self.stream.float() + x @ weight.T
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * self.norm.float()
        return normed @ weight.T if self.product.kind == "norm_linear" else silu_mul_exact(normed @ weight.T)


def silu_mul_exact(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


@torch.inference_mode()
def check(device: int, items: list[tuple[Product, Tile]], seconds: float) -> list[str | float]:
    """The relative error of each tile, or what went wrong. Runs in a process of its own."""
    deadline = time.monotonic() + seconds
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = False
    found: list[str | float] = []
    for product, tile in items:
        if time.monotonic() > deadline:
            found.append("no time left")
            continue
        try:
            inputs = Inputs(product, tile.rows - 3, 1)
            expected = inputs.exact()
            got = inputs.run(tile)
            found.append(float((got.double() - expected.double()).norm() / expected.double().norm()))
        except Exception as exception:  # too much shared memory, or an illegal access, which spoils all that follow
            found.append(f"{type(exception).__name__}: {' '.join(str(exception).split())[:100]}")
    return found


@torch.inference_mode()
def time_cases(device: int, cases: list[tuple[Product, int, list[Tile]]], seconds: float) -> list[dict[str, object]]:
    """Microseconds of every tile of some cases, and of what it stands in for. Runs in a process of its own."""
    deadline = time.monotonic() + seconds
    torch.cuda.set_device(device)
    results = []
    for product, rows, tiles in cases:
        inputs = Inputs(product, rows, min(MOST_COPIES, math.ceil(BYTES_IN_TURN / product.weight_bytes)))
        apart_us = graph_us(inputs.run_apart, inputs.copies)
        times: list[tuple[float, Tile]] = []
        for tile in tiles:
            if time.monotonic() > deadline:
                break
            times.append((graph_us(partial(inputs.run, tile), inputs.copies), tile))
        if not times:
            continue
        times.sort(key=lambda item: item[0])
        best = times[0][1]
        late_us = graph_us(partial(inputs.run, best), inputs.copies, early=False)
        one_us = graph_us(partial(Inputs(product, 1, inputs.copies).run, best), inputs.copies)
        results.append(
            {
                "product": [product.kind, product.width, product.depth],
                "calls": product.calls,
                "rows": rows,
                "floor_us": product.weight_bytes / 4.3e6,
                "apart_us": apart_us,
                "late_us": late_us,  # without programmatic dependent launch
                "one_row_us": one_us,
                "times": [[us, asdict(tile)] for us, tile in times],
            }
        )
        del inputs
        torch.cuda.empty_cache()
    return results


def graph_us(run: Callable[[int], object], copies: int, early: bool = True) -> float:
    """Median microseconds of one call, each copy of the weights in turn."""
    launches_early = kernels.launches_early
    kernels.launches_early = launches_early if early else lambda device: False
    try:
        run(0)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for copy in range(copies):
                run(copy)
    finally:
        kernels.launches_early = launches_early
    times = []
    for _ in range(8):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return 1000 * statistics.median(times[2:]) / copies


def run_in_processes(function: Callable[..., list], arguments: list[tuple], seconds: float) -> list[list]:
    """One spawned process for each tuple of arguments; what gives no answer in time gives an empty one."""
    deadline = time.monotonic() + seconds
    with multiprocessing.get_context("spawn").Pool(len(arguments), maxtasksperchild=1) as pool:
        jobs = [pool.apply_async(function, args) for args in arguments]
        answers = []
        for job in jobs:
            try:
                answers.append(job.get(timeout=max(0.1, deadline - time.monotonic())))
            except Exception as exception:
                print(f"a process failed: {type(exception).__name__} {str(exception)[:300]}")
                answers.append([])
        pool.terminate()
    return answers


def code(tile: Tile) -> str:
    """A tile as the table has it."""
    named = [f"{f.name}={getattr(tile, f.name)}" for f in fields(Tile)[3:] if getattr(tile, f.name) != f.default]
    return f"Tile({', '.join([str(tile.rows), str(tile.cols), str(tile.step), *named])})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--check-s", type=float, default=50)
    parser.add_argument("--time-s", type=float, default=35)
    args = parser.parse_args()
    began = time.monotonic()
    num_devices = torch.cuda.device_count()
    num_processes = min(os.cpu_count() or 1, 16 * num_devices)
    items = [(p, tile) for p in PRODUCTS for rows in ROW_BUCKETS for tile in candidates(p, rows)]
    random.Random(1).shuffle(items)
    slices = [items[i::num_processes] for i in range(num_processes)]
    answers = run_in_processes(
        check, [(i % num_devices, part, args.check_s) for i, part in enumerate(slices)], args.check_s + 20
    )
    outcomes = [
        (item, outcome)
        for part, answer in zip(slices, answers, strict=True)
        for item, outcome in zip(part, answer or ["no answer"] * len(part), strict=True)
    ]
    right = {item for item, outcome in outcomes if isinstance(outcome, float) and outcome < TOLERANCE}
    failures = [(item, outcome) for item, outcome in outcomes if item not in right]
    print(f"{len(right)} of {len(items)} tiles are right, after {time.monotonic() - began:.0f} s")
    for (product, tile), outcome in failures[:12]:
        print(f"  {product.kind} {product.width}x{product.depth} {code(tile)}: {outcome}")

    cases = [
        (product, rows, [tile for tile in candidates(product, rows) if (product, tile) in right])
        for product in PRODUCTS
        for rows in ROW_BUCKETS
    ]
    cases.sort(key=lambda case: -case[0].calls)
    parts = [(i, cases[i::num_devices], args.time_s) for i in range(num_devices)]
    results = [row for answer in run_in_processes(time_cases, parts, args.time_s + 20) for row in answer]
    results.sort(key=lambda row: (row["rows"], -row["calls"], str(row["product"])))

    print(f"timed after {time.monotonic() - began:.0f} s; microseconds")
    print(f"{'product':24} {'rows':>4} {'floor':>6} {'apart':>6} {'best':>6} {'late':>6} {'1 row':>6}")
    table: dict[str, dict[int, dict[str, object]]] = {}
    for row in results:
        kind, width, depth = row["product"]
        (best_us, best), *others = row["times"]
        print(
            f"{f'{kind} {width}x{depth}':24} {row['rows']:>4} {row['floor_us']:>6.1f} {row['apart_us']:>6.1f} "
            f"{best_us:>6.1f} {row['late_us']:>6.1f} {row['one_row_us']:>6.1f}  {code(Tile(**best))}"
            + "".join(f" | {us:.1f} {code(Tile(**tile))[5:-1]}" for us, tile in others[:2])
        )
        table.setdefault(f"{kind} {width} {depth}", {})[row["rows"]] = best
    for rows in ROW_BUCKETS:
        of_rows = [row for row in results if row["rows"] == rows]
        apart_ms, best_ms = (
            sum(row["calls"] * us(row) for row in of_rows) / 1000
            for us in (lambda row: row["apart_us"], lambda row: row["times"][0][0])
        )
        print(f"{rows} rows: {apart_ms:.2f} -> {best_ms:.2f} ms of a frame (the rest of it apart)")
    (args.out / "small_batch.json").write_text(json.dumps({"best": table, "results": results, "failed": len(failures)}))
    print("TILES = {")
    for key, by_rows in table.items():
        kind, width, depth = key.split()
        if len(by_rows) == len(ROW_BUCKETS):
            tiles = ", ".join(code(Tile(**by_rows[rows])) for rows in ROW_BUCKETS)
            print(f'    ("{kind}", {width}, {depth}): ({tiles}),')
    print(f"}}  # after {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
