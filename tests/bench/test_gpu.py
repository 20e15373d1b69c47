"""The watch over GPUs: samples of every device while it is entered, none where there is no NVML or no GPU."""

from __future__ import annotations

import time

import pytest
import torch

from tts_batch.bench.gpu import SAMPLE_EVERY_S, GpuWatch


def test_a_cpu_is_not_watched() -> None:
    with GpuWatch([torch.device("cpu")]) as watch:
        pass
    assert (watch.busy(), watch.peak_memory_gib) == (None, None)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    reserved = {0: 2**30, 1: 2**31}
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: reserved[device.index])
    return [torch.device("cuda:0"), torch.device("cuda:1")]


def test_every_device_is_sampled_until_the_end(two_gpus: list[torch.device], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 30 + 60 * device.index)
    with GpuWatch(two_gpus) as watch:
        time.sleep(6 * SAMPLE_EVERY_S)
    num_samples = len(watch._samples)
    assert num_samples >= 2
    assert watch.busy() == pytest.approx({"cuda:0": 0.3, "cuda:1": 0.9})
    assert watch.busy(from_s=time.monotonic()) is None
    assert watch.peak_memory_gib == 3.0
    time.sleep(2 * SAMPLE_EVERY_S)
    assert len(watch._samples) == num_samples


def test_without_nvml_nothing_is_said(two_gpus: list[torch.device], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(device: torch.device) -> int:
        raise ModuleNotFoundError("pynvml")

    monkeypatch.setattr(torch.cuda, "utilization", missing)
    with GpuWatch(two_gpus) as watch:
        time.sleep(2 * SAMPLE_EVERY_S)
    assert watch.busy() is None
    assert watch.peak_memory_gib == 3.0
