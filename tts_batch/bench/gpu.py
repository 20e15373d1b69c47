"""GPU utilization as NVML reports it, and the peak memory that torch reserved."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from statistics import mean

import torch

SAMPLE_EVERY_S = 0.05
METHOD = (
    "by NVML: the share of its last sampling period (1/6 to 1 s) in which any kernel ran, read every "
    f"{1000 * SAMPLE_EVERY_S:.0f} ms; steady state: from the first clip to the one that completed 90 % of the audio"
)


def cuda_only(devices: Sequence[torch.device]) -> list[torch.device]:
    return [device for device in devices if device.type == "cuda"]


def reset_peak_memory(devices: Sequence[torch.device]) -> None:
    """Reset the peak that `peak_memory_gib` returns."""
    for device in cuda_only(devices):
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_gib(devices: Sequence[torch.device]) -> float | None:
    """The most memory torch reserved since the reset, in GiB, summed over the GPUs; None on a CPU."""
    peaks = [torch.cuda.max_memory_reserved(device) for device in cuda_only(devices)]
    return sum(peaks) / 2**30 if peaks else None


class GpuWatch:
    """A context manager that samples the utilization of CUDA devices; without NVML, or on a CPU, it has no samples."""

    def __init__(
        self, devices: Sequence[torch.device], read: Callable[[torch.device], int] = torch.cuda.utilization
    ) -> None:
        """`read` returns the utilization of a device in percent, or raises."""
        self._devices = cuda_only(devices)
        self._read = read
        self._samples: list[tuple[float, list[int]]] = []  # time.monotonic(), percent of each device
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def utilization(self, from_s: float = -float("inf"), to_s: float = float("inf")) -> dict[str, float] | None:
        """The mean utilization (0 to 1) of each device between two times; None without a sample in between."""
        taken = [percentages for at_s, percentages in self._samples if from_s <= at_s <= to_s]
        if not taken:
            return None
        return {
            str(device): mean(percentages[i] for percentages in taken) / 100 for i, device in enumerate(self._devices)
        }

    def __enter__(self) -> GpuWatch:
        if self._devices and self._sample():
            self._samples.clear()  # it covers the time before
            self._thread = threading.Thread(target=self._watch, name="tts-batch-nvml", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_EVERY_S) and self._sample():
            pass

    def _sample(self) -> bool:
        try:
            percentages = [self._read(device) for device in self._devices]
        except Exception:  # no NVML, or one that does not know this device
            return False
        self._samples.append((time.monotonic(), percentages))
        return True
