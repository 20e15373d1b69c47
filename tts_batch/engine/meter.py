"""Times an engine: device seconds by stage, host seconds by unit of work, and counts of both.

Always on: two CUDA events per stage, which are waited for only when the meter is read.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Reading:
    """Totals since the engine was opened."""

    device_s: Mapping[str, float]  # by stage; stages on streams side by side slow each other down, and both count that
    host_s: Mapping[str, float]  # of the compute thread, by unit of work
    counts: Mapping[str, int]
    graphs: Mapping[str, Mapping[str, int]]  # of each owner of CUDA graphs: see CudaGraphs.counts

    def since(self, earlier: Reading) -> Reading:
        """The difference to an earlier reading of the same meter. Names whose total did not change are left out."""
        return Reading(
            _difference(self.device_s, earlier.device_s),
            _difference(self.host_s, earlier.host_s),
            _difference(self.counts, earlier.counts),
            {name: _difference(counts, earlier.graphs.get(name, {})) for name, counts in self.graphs.items()},
        )


class Meter:
    """Used from one thread; read while that thread is idle."""

    def __init__(self) -> None:
        self.host_s: defaultdict[str, float] = defaultdict(float)
        self.counts: Counter[str] = Counter()
        self.graphs: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._device_s: defaultdict[str, float] = defaultdict(float)
        self._open: deque[tuple[str, torch.cuda.Event, torch.cuda.Event]] = deque()

    @contextmanager
    def on_device(self, stage: str, device: torch.device) -> Iterator[None]:
        """Time what is queued within it on the device's current stream; elsewhere than on CUDA, by the clock."""
        if device.type != "cuda":
            started_s = time.perf_counter()
            yield
            self._device_s[stage] += time.perf_counter() - started_s
            return
        stream = torch.cuda.current_stream(device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record(stream)
        yield
        end.record(stream)
        self._open.append((stage, begin, end))
        while self._open and self._open[0][2].query():
            self._close_first()

    @contextmanager
    def on_host(self, unit: str) -> Iterator[None]:
        """Time the thread itself, by the clock."""
        started_s = time.perf_counter()
        try:
            yield
        finally:
            self.host_s[unit] += time.perf_counter() - started_s

    def read(self) -> Reading:
        """The totals, once the device has done all that was timed."""
        while self._open:
            self._open[0][2].synchronize()
            self._close_first()
        graphs = {name: dict(counts) for name, counts in self.graphs.items()}
        return Reading(dict(self._device_s), dict(self.host_s), dict(self.counts), graphs)

    def _close_first(self) -> None:
        stage, begin, end = self._open.popleft()
        self._device_s[stage] += begin.elapsed_time(end) / 1000


def _difference(later: Mapping[str, Number], earlier: Mapping[str, Number]) -> dict[str, Number]:
    return {name: total - earlier.get(name, 0) for name, total in later.items() if total != earlier.get(name, 0)}
