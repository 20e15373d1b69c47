"""Samples of GPU utilization: of every device within the block, none without NVML or without a GPU."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from tests.run.support import wait_until
from tts_batch.bench.gpu import GpuWatch, peak_memory_gib, reset_peak_memory

CPU = torch.device("cpu")
TWO = [torch.device("cuda:0"), CPU, torch.device("cuda:1")]


def is_sampling() -> bool:
    return "tts-batch-nvml" in {thread.name for thread in threading.enumerate()}


def test_a_cpu_is_not_sampled() -> None:
    reset_peak_memory([CPU])
    with GpuWatch([CPU], read=lambda device: 100) as watch:
        assert not is_sampling()
    assert (watch.utilization(), peak_memory_gib([CPU])) == (None, None)


def test_every_gpu_is_sampled_until_the_end() -> None:
    reads = []

    def read(device: torch.device) -> int:
        reads.append(device)
        return 30 + 60 * device.index

    with GpuWatch(TWO, read) as watch:
        wait_until(lambda: len(reads) >= 6)
        assert is_sampling()
    assert not is_sampling()
    assert watch.utilization() == pytest.approx({"cuda:0": 0.3, "cuda:1": 0.9})
    assert watch.utilization(from_s=time.monotonic()) is None


def test_only_what_was_read_in_between_counts() -> None:
    reads = []

    def read(device: torch.device) -> int:
        reads.append(device)
        return len(reads)

    with GpuWatch([torch.device("cuda:0")], read) as watch:
        wait_until(lambda: len(reads) > 4)
        middle_s = time.monotonic()
        wait_until(lambda: len(reads) > 8)
    earlier, later = watch.utilization(to_s=middle_s), watch.utilization(from_s=middle_s)
    assert earlier and later
    assert earlier["cuda:0"] < watch.utilization()["cuda:0"] < later["cuda:0"]


def test_without_nvml_there_is_no_sample() -> None:
    def missing(device: torch.device) -> int:
        raise ModuleNotFoundError("pynvml")

    with GpuWatch(TWO, missing) as watch:
        pass
    assert watch.utilization() is None
