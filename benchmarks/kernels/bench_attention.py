"""Times the decode attention of the talker and the code predictor, at the released shape and by launch setting.

    python -m benchmarks.kernels.bench_attention [--rows 1 16 64 256 1024]

Prints microseconds a call, from replayed CUDA graphs over the KV cache of several layers; for the talker also the
bandwidth of its KV reads.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.timing import capture, median_ms
from tts_batch.engine.kernels import attention, predictor_attention
from tts_batch.engine.kernels.attention import decode_attention
from tts_batch.engine.kernels.rotary_cache import Rotation

HEADS, KV_HEADS, HEAD_DIM, PAGE_SIZE = 16, 8, 128, 64
CONTEXTS = (64, 400)  # tokens of a row, evenly spread
STORED = (2, 4, 8, 15)  # tokens of a predictor's row before the new one: one of each tile
TALKER_LAUNCHES = [{"num_warps": w, "num_stages": s} for w, s in ((4, 2), (4, 1), (4, 3), (8, 2), (2, 2))]
PREDICTOR_LAUNCHES = [{"num_warps": w} for w in (1, 2, 4)]

Attend = Callable[..., Tensor]


def randn(*size: int) -> Tensor:
    return torch.randn(*size, dtype=torch.bfloat16, device="cuda")


def make_rotation(max_positions: int) -> Rotation:
    angles = torch.rand(max_positions, HEAD_DIM // 2, device="cuda") * 6
    return Rotation(randn(HEAD_DIM), randn(HEAD_DIM), 1e-6, angles.cos().bfloat16(), angles.sin().bfloat16())


def talker_calls(rows: int, attend: Attend = decode_attention) -> tuple[list[Callable[[], Tensor]], int]:
    """A call for each of several layers, and the bytes of KV that one call reads."""
    pages = -(-CONTEXTS[1] // PAGE_SIZE)
    layers = max(2, min(28, 4096 // rows))
    kv = randn(layers, 2, rows * pages, KV_HEADS, PAGE_SIZE, HEAD_DIM)
    table = torch.randperm(rows * pages, device="cuda").view(rows, pages).to(torch.int32)
    lens = torch.linspace(*CONTEXTS, rows, device="cuda").to(torch.int32)
    qkv, rotation = randn(rows, (HEADS + 2 * KV_HEADS) * HEAD_DIM), make_rotation(CONTEXTS[1])
    calls = [partial(attend, qkv, rotation, *layer, table, lens) for layer in kv]
    return calls, int(lens.sum()) * 2 * KV_HEADS * HEAD_DIM * kv.element_size()


def predictor_calls(
    rows: int, num_stored: int, attend: Attend = predictor_attention.predictor_attention
) -> list[Callable[[], Tensor]]:
    """A call for each layer."""
    kv = randn(5, 2, rows, KV_HEADS, 16, HEAD_DIM)
    tokens = rows if num_stored else 2 * rows
    qkv, rotation = randn(tokens, (HEADS + 2 * KV_HEADS) * HEAD_DIM), make_rotation(17)
    return [partial(attend, qkv, rotation, *layer, num_stored) for layer in kv]


def microseconds(calls: list[Callable[[], Tensor]]) -> float:
    """The median of one call when all run one after another; NaN when they do not compile."""

    def run() -> None:
        for _ in range(4):
            for call in calls:
                call()

    try:
        graph = capture(run)
    except Exception as error:  # too much shared memory for this launch
        print(f"{type(error).__name__}: {error}"[:200])
        return float("nan")
    return median_ms(graph.replay, 10) * 1e3 / (4 * len(calls))


@contextmanager
def launched(table: dict[str, Any], launch: dict[str, Any]) -> Iterator[None]:
    before = dict(table)
    table.update(launch)
    try:
        yield
    finally:
        table.update(before)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64, 256, 1024])
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, {HEADS} heads, {KV_HEADS} KV heads of {HEAD_DIM}; microseconds a call")
    print(f"talker, contexts {CONTEXTS[0]}..{CONTEXTS[1]}; of each launch the time, of the first also TB/s")
    print(f"{'rows':>5} {'TB/s':>6}", *(f"{tuple(launch.values())!s:>8}" for launch in TALKER_LAUNCHES))
    for rows in args.rows:
        calls, kv_bytes = talker_calls(rows)
        times = []
        for launch in TALKER_LAUNCHES:
            with launched(attention.DECODE_LAUNCH, launch):
                times.append(microseconds(calls))
        print(f"{rows:>5} {kv_bytes / times[0] / 1e6:>6.2f}", *(f"{us:>8.1f}" for us in times), flush=True)
        del calls
    print("predictor; of each launch the time")
    print(f"{'rows':>5} {'stored':>6}", *(f"{tuple(launch.values())!s:>8}" for launch in PREDICTOR_LAUNCHES))
    for rows in args.rows:
        for num_stored in (0, *STORED):
            calls, times = predictor_calls(rows, num_stored), []
            for launch in PREDICTOR_LAUNCHES:
                with launched(predictor_attention.LAUNCH, launch):
                    times.append(microseconds(calls))
            print(f"{rows:>5} {num_stored:>6}", *(f"{us:>8.1f}" for us in times), flush=True)


if __name__ == "__main__":
    main()
