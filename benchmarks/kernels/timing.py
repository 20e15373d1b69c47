"""Times work on a CUDA device by its events: as it is launched, or replayed from a CUDA graph."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch


def capture(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Return a CUDA graph of `run`, which runs once before, on a side stream, so that its kernels are compiled."""
    with torch.cuda.stream(torch.cuda.Stream()):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


def median_ms(run: Callable[[], object], repeats: int) -> float:
    """Return the median milliseconds of `repeats` runs, after one that is not counted."""
    run()
    times_ms = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times_ms.append(start.elapsed_time(end))
    return statistics.median(times_ms)
