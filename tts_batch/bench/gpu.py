"""GPU utilization, sampled through NVML, and the peak of the memory that torch reserved."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from statistics import mean

import torch

SAMPLE_EVERY_S = 0.05
UTILIZATION_METHOD = (
    "by NVML: the share of its last sampling period (1/6 to 1 s) in which any kernel ran, read every "
    f"{1000 * SAMPLE_EVERY_S:.0f} ms; steady state: from the first clip to that with which 90 % of the audio was there"
)


def cuda_only(devices: Sequence[torch.device]) -> list[torch.device]:
    return [device for device in devices if device.type == "cuda"]


def reset_peak_memory(devices: Sequence[torch.device]) -> None:
    """Reset the peak of the memory that torch reserved."""
    for device in cuda_only(devices):
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_gib(devices: Sequence[torch.device]) -> float | None:
    """Return the most that torch has reserved since the reset, all GPUs together; None on a CPU."""
    peaks = [torch.cuda.max_memory_reserved(device) for device in cuda_only(devices)]
    return sum(peaks) / 2**30 if peaks else None


class GpuSampler:
    """Samples the utilization of some devices within a `with` block; no samples without NVML or on a CPU."""

    def __init__(
        self, devices: Sequence[torch.device], read: Callable[[torch.device], int] = torch.cuda.utilization
    ) -> None:
        """`read` returns the utilization of a device in percent, or raises."""
        self._devices = cuda_only(devices)
        self._read = read
        self._samples: list[tuple[float, list[int]]] = []  # (time, percentage of each device)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def utilization(self, from_s: float = -float("inf"), to_s: float = float("inf")) -> dict[str, float] | None:
        """Return the mean utilization of each device, 0 to 1, between two times; None without a sample between them."""
        taken = [percentages for at_s, percentages in self._samples if from_s <= at_s <= to_s]
        if not taken:
            return None
        return {
            str(device): mean(percentages[i] for percentages in taken) / 100 for i, device in enumerate(self._devices)
        }

    def __enter__(self) -> GpuSampler:
        if self._devices and self._sample():
            self._samples.clear()  # that one covers what ran before
            self._thread = threading.Thread(target=self._run, name="tts-batch-nvml", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_EVERY_S) and self._sample():
            pass

    def _sample(self) -> bool:
        try:
            percentages = [self._read(device) for device in self._devices]
        except Exception:  # no NVML, or one that does not know this device
            return False
        self._samples.append((time.monotonic(), percentages))
        return True
