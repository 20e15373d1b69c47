"""CUDA graphs by bucket: what is replayed, captured on demand or run eagerly is counted, and a miss is named."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import pytest

from tts_batch.engine.cuda_graphs import CudaGraphs, bucket_for, row_buckets


@dataclass
class Replay:
    run: Callable[[], object]

    def replay(self) -> None:
        self.run()


class OnCpu(CudaGraphs):
    """Graphs that are the functions themselves."""

    def __init__(self, counts: Counter[str] | None = None) -> None:
        super().__init__(False, "codec", counts)
        self.enabled = True

    def capture(self, key: Hashable, run: Callable[[], object]) -> None:
        self._graphs[key] = Replay(run)


def test_hits_and_misses_are_counted_and_a_miss_names_its_bucket_once(caplog: pytest.LogCaptureFixture) -> None:
    counts: Counter[str] = Counter()
    graphs, ran = OnCpu(counts), []
    graphs.capture((4, 16), lambda: ran.append("captured"))
    with caplog.at_level(logging.WARNING):
        for key in [(4, 16), (8, 16), (8, 16)]:
            graphs.run(key, lambda: ran.append("given"))
        graphs.count_miss((8, 24))
        graphs.count_miss((8, 24))
    assert ran == ["captured", "given", "given"]
    assert counts == {"hit": 2, "miss[(8, 16)]": 1, "miss[(8, 24)]": 2}
    assert [record.message for record in caplog.records] == [
        f"codec: no CUDA graph for {key} was captured at the start" for key in ("(8, 16)", "(8, 24)")
    ]


def test_disabled_everything_runs_as_it_is() -> None:
    graphs, ran = CudaGraphs(False), []
    assert 7 in graphs
    graphs.run(7, lambda: ran.append(1))
    assert (ran, graphs.counts) == ([1], {"eager": 1})


def test_buckets() -> None:
    assert row_buckets(5) == (1, 2, 4, 5)
    assert [bucket_for(size, (1, 4, 5)) for size in (1, 2, 4, 5)] == [1, 4, 4, 5]
    with pytest.raises(ValueError, match="6 is above the largest bucket 5"):
        bucket_for(6, (1, 4, 5))
