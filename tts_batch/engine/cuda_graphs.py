"""The one owner of CUDA graphs: captured by bucket, replayed by name, every hit and miss counted."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import torch

from tts_batch.engine.choices import ROW_BUCKETS

logger = logging.getLogger(__name__)


def bucket_for(size: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that holds `size`. Raises ValueError above the largest: nothing is silently split."""
    if size > buckets[-1]:
        raise ValueError(f"{size} is above the largest bucket {buckets[-1]}")
    return buckets[bisect_left(buckets, size)]


def row_buckets(max_num_seqs: int) -> tuple[int, ...]:
    """The row buckets up to max_num_seqs, which is one itself."""
    return (*(b for b in ROW_BUCKETS if b < max_num_seqs), max_num_seqs)


class CudaGraphs:
    """Graphs that share one memory pool. Disabled (on CPU, or by --no-cuda-graph) it runs the function itself.

    `counts` says how each run went: "hit"; "miss[BUCKET]": there was no graph for it; "eager": disabled.
    """

    def __init__(
        self,
        enabled: bool,
        owner: str = "",
        counts: Counter[str] | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.enabled = enabled
        self.device = device  # None: the current one
        self.owner = owner  # the name in the log
        self.counts: Counter[str] = Counter() if counts is None else counts
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if enabled else None
        # One for all captures: graphs share what memory the pool has for their stream. Torch's own stream for captures
        # is of the device that captured first.
        self._stream = torch.cuda.Stream(device) if enabled else None

    def __contains__(self, key: Hashable) -> bool:
        return not self.enabled or key in self._graphs

    def capture(self, key: Hashable, run: Callable[[], object]) -> None:
        """Capture `run` under a key. It reads and writes static tensors only; capture the largest bucket first."""
        started_s = time.monotonic()
        with torch.cuda.device(self.device):
            self._graphs[key] = self._captured(run)
        logger.debug("captured %s %s in %.2f s", self.owner, key, time.monotonic() - started_s)

    def _captured(self, run: Callable[[], object]) -> torch.cuda.CUDAGraph:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            run()  # compiles kernels and lets libraries allocate outside the capture
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process may go on using the device meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            run()
        return graph

    def run(self, key: Hashable, run: Callable[[], object]) -> None:
        """Replay the graph of a key, capturing it first if it is new; or call `run` where graphs are off."""
        if not self.enabled:
            self.counts["eager"] += 1
            run()
            return
        if key in self._graphs:
            self.counts["hit"] += 1
        else:
            self.count_miss(key)
            self.capture(key, run)
        self._graphs[key].replay()

    def count_miss(self, key: Hashable) -> None:
        """Count what has no graph by the name of its bucket, and log it the first time."""
        name = f"miss[{key}]"
        if name not in self.counts:
            logger.warning("%s: no CUDA graph for %s was captured at the start", self.owner, key)
        self.counts[name] += 1
