"""Samples of GPU utilization: of every device within the block, none without NVML or without a GPU."""

from __future__ import annotations

import time

import pytest
import torch

from tts_batch.bench.gpu import SAMPLE_EVERY_S, GpuSampler, peak_memory_gib, reset_peak_memory

CPU = torch.device("cpu")
TWO = [torch.device("cuda:0"), CPU, torch.device("cuda:1")]


def test_a_cpu_is_not_sampled() -> None:
    reset_peak_memory([CPU])
    with GpuSampler([CPU], read=lambda device: 100) as sampler:
        time.sleep(2 * SAMPLE_EVERY_S)
    assert (sampler.utilization(), peak_memory_gib([CPU])) == (None, None)


def test_every_gpu_is_sampled_until_the_end() -> None:
    reads = []

    def read(device: torch.device) -> int:
        reads.append(device)
        return 30 + 60 * device.index

    with GpuSampler(TWO, read) as sampler:
        time.sleep(6 * SAMPLE_EVERY_S)
    num_reads = len(reads)
    assert num_reads >= 4
    assert sampler.utilization() == pytest.approx({"cuda:0": 0.3, "cuda:1": 0.9})
    assert sampler.utilization(from_s=time.monotonic()) is None
    time.sleep(2 * SAMPLE_EVERY_S)
    assert len(reads) == num_reads


def test_only_what_was_read_in_between_counts() -> None:
    percentages = iter([0, *range(100)])
    with GpuSampler([torch.device("cuda:0")], lambda device: next(percentages)) as sampler:
        time.sleep(4 * SAMPLE_EVERY_S)
        middle_s = time.monotonic()
        time.sleep(4 * SAMPLE_EVERY_S)
    earlier, later = sampler.utilization(to_s=middle_s), sampler.utilization(from_s=middle_s)
    assert earlier and later
    assert earlier["cuda:0"] < sampler.utilization()["cuda:0"] < later["cuda:0"]


def test_without_nvml_there_is_no_sample() -> None:
    def missing(device: torch.device) -> int:
        raise ModuleNotFoundError("pynvml")

    with GpuSampler(TWO, missing) as sampler:
        time.sleep(2 * SAMPLE_EVERY_S)
    assert sampler.utilization() is None
