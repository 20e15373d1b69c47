"""One measurement: a whole workload through a warm engine, from the first request to the last waveform on the host."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Protocol

import numpy as np
import torch

from tts_batch.bench.gpu import GpuWatch, forget_peak_memory, peak_memory_gib
from tts_batch.bench.player import ChunkRecorder, PlaybackStats
from tts_batch.engine.meter import Reading
from tts_batch.engine.request import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME, Engine, SpeechRequest, SpeechResult

STEP_S = 1.0
STEADY_SHARE = 0.9  # of the audio: when so much is there, the tail begins


class BenchEngine(Engine, Protocol):
    """An engine that tells where its time went."""

    def read_meter(self) -> Reading: ...


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one pass over a workload gave. Audio counts only where the clip has exactly its frames and is finite.

    Latencies count from when the engine gets a request to its waveform on the host, of whole clips only.
    """

    attempted: int
    completed: int
    audio_s: float
    started_s: float  # on the machine's monotonic clock, which all its processes share
    wall_s: float
    first_result_s: float
    tail_s: float  # from the result with which 90 % of the audio was there to the last
    latency_p50_s: float | None
    latency_p99_s: float | None
    row_rtf_p50: float | None  # of a row: its latency for each second of its audio
    gpu_utilization: float | None  # see gpu.HOW; the mean of all devices
    gpu_idle_steady: float | None  # in the steady state, as HOW says; the mean of all devices
    gpu_idle_steady_each: dict[str, float] | None
    peak_memory_gib: float | None
    stages_s: dict[str, float]  # means over rows, as the engine reports them
    frames: int  # of the frame loop: each is one of every row under way
    device_ms_per_frame: dict[str, float]  # what the device spent on each stage for a frame of the loop
    host_ms_per_frame: dict[str, float]  # what the compute thread spent on each unit of work
    counts: dict[str, int]
    graphs: dict[str, dict[str, int]]  # hits, misses by bucket, and eager runs
    playback: PlaybackStats | None  # in chunked mode
    finish_reasons: dict[str, int]

    @property
    def audio_s_per_s(self) -> float:
        return self.audio_s / self.wall_s

    @property
    def rows_per_s(self) -> float:
        return self.completed / self.wall_s

    @property
    def rtf(self) -> float | None:
        """Seconds for each second of audio; None without audio."""
        return self.wall_s / self.audio_s if self.audio_s else None

    def as_dict(self) -> dict[str, object]:
        rates = {"audio_s_per_s": self.audio_s_per_s, "rows_per_s": self.rows_per_s, "rtf": self.rtf}
        return {**rates, **asdict(self)}


def measure(
    engine: BenchEngine,
    requests: Sequence[SpeechRequest],
    concurrency: int | None,
    chunks: ChunkRecorder | None = None,
) -> Measurement:
    """Run requests of fixed length through a warm engine, at most `concurrency` of them in flight (None: all it takes).

    `chunks` is the `on_chunk` of an engine in chunked mode.
    """
    lengths = {request.request_id: request.max_frames for request in requests}
    added_at_s: dict[str, float] = {}
    ended_at_s: dict[str, float] = {}
    audio_s: dict[str, float] = {}
    stages: defaultdict[str, float] = defaultdict(float)
    reasons: Counter[str] = Counter()
    if chunks is not None:
        chunks.clear()
    devices = _devices(engine.info)
    forget_peak_memory(devices)
    before = engine.read_meter()
    waiting = deque(requests)
    with GpuWatch(devices) as gpus:
        started_s = time.monotonic()
        while len(ended_at_s) < len(lengths):
            room = engine.num_wanted
            if concurrency is not None:
                room = min(room, concurrency - (len(added_at_s) - len(ended_at_s)))
            for _ in range(min(room, len(waiting))):
                request = waiting.popleft()
                added_at_s[request.request_id] = time.monotonic()
                engine.add_request(request)
            for result in engine.step(STEP_S):
                ended_at_s[result.request_id] = time.monotonic()
                reasons[result.finish_reason if result.reason is None else result.reason] += 1
                if _is_whole(result, lengths[result.request_id]):
                    audio_s[result.request_id] = result.num_frames * SAMPLES_PER_FRAME / SAMPLE_RATE_HZ
                for name, value in result.metrics.items():
                    if name.endswith("_s"):
                        stages[name] += value
        wall_s = time.monotonic() - started_s
    spent = engine.read_meter().since(before)
    frames = spent.counts.get("frames", 0)
    latencies_s = {name: ended_at_s[name] - added_at_s[name] for name in audio_s}
    first_at_s, tail_at_s = min(ended_at_s.values()), _time_of_share(audio_s, ended_at_s, STEADY_SHARE)
    busy, busy_steady = gpus.busy(), gpus.busy(first_at_s, tail_at_s)
    idle_steady = {device: 1 - share for device, share in busy_steady.items()} if busy_steady else None
    return Measurement(
        attempted=len(requests),
        completed=len(audio_s),
        audio_s=sum(audio_s.values()),
        started_s=started_s,
        wall_s=wall_s,
        first_result_s=first_at_s - started_s,
        tail_s=started_s + wall_s - tail_at_s,
        latency_p50_s=_percentile(latencies_s.values(), 50),
        latency_p99_s=_percentile(latencies_s.values(), 99),
        row_rtf_p50=_percentile([latencies_s[name] / seconds for name, seconds in audio_s.items() if seconds], 50),
        gpu_utilization=mean(busy.values()) if busy else None,
        gpu_idle_steady=mean(idle_steady.values()) if idle_steady else None,
        gpu_idle_steady_each=idle_steady,
        peak_memory_gib=peak_memory_gib(devices),
        stages_s={name: total / len(requests) for name, total in sorted(stages.items())},
        frames=frames,
        device_ms_per_frame=_ms_per_frame(spent.device_s, frames),
        host_ms_per_frame=_ms_per_frame(spent.host_s, frames),
        counts=dict(spent.counts),
        graphs={name: dict(counts) for name, counts in spent.graphs.items()},
        playback=chunks.stats({name: added_at_s[name] for name in audio_s}) if chunks else None,
        finish_reasons=dict(reasons),
    )


def _devices(info: Mapping[str, str]) -> list[torch.device]:
    """The engine's, each once."""
    names = [info[name] for name in ("device", "code2wav_device") if name in info]
    return [torch.device(name) for name in dict.fromkeys(names)]


def _is_whole(result: SpeechResult, num_frames: int) -> bool:
    return (
        result.finish_reason in ("length", "stop")
        and result.num_frames == num_frames
        and result.audio is not None
        and len(result.audio) == num_frames * SAMPLES_PER_FRAME
        and bool(np.isfinite(result.audio).all())
    )


def _time_of_share(audio_s: Mapping[str, float], ended_at_s: Mapping[str, float], share: float) -> float:
    """When `share` of all audio was there."""
    wanted, have = share * sum(audio_s.values()), 0.0
    for name in sorted(audio_s, key=ended_at_s.__getitem__):
        have += audio_s[name]
        if have >= wanted:
            return ended_at_s[name]
    return max(ended_at_s.values())


def _percentile(values: Collection[float], percent: float) -> float | None:
    return float(np.percentile(list(values), percent)) if values else None


def _ms_per_frame(seconds: Mapping[str, float], frames: int) -> dict[str, float]:
    return {name: 1000 * total / frames for name, total in sorted(seconds.items())} if frames else {}
