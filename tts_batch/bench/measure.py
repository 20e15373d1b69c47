"""One measurement: a whole workload through a warm engine, from the first request to the last waveform on the host."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tts_batch.bench.engines import ForcedEndPreparer
from tts_batch.bench.workload import BenchRow
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.request import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME, SpeechRequest, SpeechResult

UTILIZATION_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one pass over a workload gave. Audio counts only where the clip has exactly its frames and is finite."""

    attempted: int
    completed: int
    audio_s: float
    started_s: float  # on the machine's monotonic clock, which all its processes share
    wall_s: float
    first_result_s: float
    tail_s: float  # from the result with which 90 % of the audio was there to the last
    latency_p50_s: float
    latency_p99_s: float
    gpu_utilization: float | None  # share of samples' time in which a kernel ran, by NVML
    peak_memory_gib: float | None  # of all devices that the process sees
    stages_s: dict[str, float]  # means over rows, as the engine reports them
    finish_reasons: dict[str, int]

    @property
    def audio_s_per_s(self) -> float:
        return self.audio_s / self.wall_s

    @property
    def rows_per_s(self) -> float:
        return self.completed / self.wall_s

    def as_dict(self) -> dict[str, object]:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {"audio_s_per_s": self.audio_s_per_s, "rows_per_s": self.rows_per_s, **fields}


def measure(
    engine: NativeEngine, preparer: ForcedEndPreparer, rows: Sequence[BenchRow], concurrency: int | None
) -> Measurement:
    """Run rows through a warm engine, at most `concurrency` of them in flight (None: as many as it takes)."""
    preparer.ends = {row.request.request_id: row.num_frames for row in rows}
    asked_at_s: dict[str, float] = {}
    ended_at_s: dict[str, float] = {}
    audio_s: dict[str, float] = {}
    stages: Counter[str] = Counter()
    reasons: Counter[str] = Counter()

    def requests() -> Iterator[SpeechRequest | None]:
        for row in rows:
            while concurrency is not None and len(asked_at_s) - len(ended_at_s) >= concurrency:
                yield None
            asked_at_s[row.request.request_id] = time.monotonic()
            yield row.request

    if torch.cuda.is_available():
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(device)
    with _Utilization() as utilization:
        started_s = time.monotonic()
        for result in engine.generate(requests()):
            ended_at_s[result.request_id] = time.monotonic()
            reasons[result.finish_reason if result.reason is None else result.reason] += 1
            if _is_valid(result, preparer.ends[result.request_id]):
                audio_s[result.request_id] = result.num_frames * SAMPLES_PER_FRAME / SAMPLE_RATE_HZ
            stages.update({name: value for name, value in result.metrics.items() if name.endswith("_s")})
        wall_s = time.monotonic() - started_s
    latencies = [ended_at_s[name] - asked_at_s[name] for name in ended_at_s]
    return Measurement(
        attempted=len(rows),
        completed=len(audio_s),
        audio_s=sum(audio_s.values()),
        started_s=started_s,
        wall_s=wall_s,
        first_result_s=min(ended_at_s.values()) - started_s,
        tail_s=started_s + wall_s - _time_of_share(audio_s, ended_at_s, 0.9),
        latency_p50_s=float(np.percentile(latencies, 50)),
        latency_p99_s=float(np.percentile(latencies, 99)),
        gpu_utilization=utilization.mean,
        peak_memory_gib=_peak_bytes() / 2**30 if torch.cuda.is_available() else None,
        stages_s={name: total / len(rows) for name, total in sorted(stages.items())},
        finish_reasons=dict(reasons),
    )


def _peak_bytes() -> int:
    return sum(torch.cuda.max_memory_reserved(device) for device in range(torch.cuda.device_count()))


def _is_valid(result: SpeechResult, num_frames: int) -> bool:
    return (
        result.finish_reason == "stop"
        and result.num_frames == num_frames
        and result.audio is not None
        and len(result.audio) == num_frames * SAMPLES_PER_FRAME
        and bool(np.isfinite(result.audio).all())
    )


def _time_of_share(audio_s: dict[str, float], ended_at_s: dict[str, float], share: float) -> float:
    """When `share` of all audio was there."""
    wanted, have = share * sum(audio_s.values()), 0.0
    for name in sorted(audio_s, key=ended_at_s.__getitem__):
        have += audio_s[name]
        if have >= wanted:
            return ended_at_s[name]
    return max(ended_at_s.values())


class _Utilization:
    """Samples NVML's utilization of the first visible device while it is entered; None where NVML is not to be had."""

    def __init__(self) -> None:
        self._samples: list[int] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def mean(self) -> float | None:
        return float(np.mean(self._samples)) / 100 if self._samples else None

    def __enter__(self) -> _Utilization:
        try:
            torch.cuda.utilization(0)
        except Exception:
            return self

        def sample() -> None:
            while not self._stop.wait(UTILIZATION_EVERY_S):
                self._samples.append(torch.cuda.utilization(0))

        self._thread = threading.Thread(target=sample, name="tts-batch-nvml", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
