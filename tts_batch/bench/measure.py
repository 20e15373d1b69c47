"""One measurement: a whole workload through a warm engine, from the first request to the last waveform on the host."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean

import numpy as np
import torch

from tts_batch.bench.gpu import GpuWatch, peak_memory_gib, reset_peak_memory
from tts_batch.bench.player import ChunkRecorder, PlaybackStats
from tts_batch.engine.meter import Reading
from tts_batch.engine.request import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME, Engine, SpeechRequest, SpeechResult

STEP_S = 1.0
STEADY_SHARE = 0.9  # of the audio; the tail begins once this much is complete


@dataclass(frozen=True, slots=True)
class Measurement:
    """The results of one pass over a workload. Only complete clips count: exactly their frames, all samples finite.

    Latencies run from `add_request` to the waveform on the host.
    """

    attempted: int
    completed: int
    audio_s: float
    started_s: float  # time.monotonic()
    wall_s: float
    first_result_s: float
    tail_s: float  # from the result that completed 90 % of the audio to the last
    latency_p50_s: float | None
    latency_p99_s: float | None
    row_rtf_p50: float | None  # latency of a row per second of its audio
    gpu_utilization: float | None  # see gpu.METHOD; mean over devices
    gpu_idle_steady: float | None  # in the steady state, see gpu.METHOD; mean over devices
    gpu_idle_steady_each: dict[str, float] | None
    peak_memory_gib: float | None
    stages_s: dict[str, float]  # means over rows, from SpeechResult.metrics
    frames: int  # steps of the frame loop, each a frame of every row in flight
    device_ms_per_frame: dict[str, float]  # device time of each stage per frame of the loop
    host_ms_per_frame: dict[str, float]  # time of the compute thread in each unit of work
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
        """Wall seconds per second of audio; None without audio."""
        return self.wall_s / self.audio_s if self.audio_s else None

    def as_dict(self) -> dict[str, object]:
        rates = {"audio_s_per_s": self.audio_s_per_s, "rows_per_s": self.rows_per_s, "rtf": self.rtf}
        return {**rates, **asdict(self)}


def measure(
    engine: Engine, requests: Sequence[SpeechRequest], concurrency: int | None, chunks: ChunkRecorder | None = None
) -> Measurement:
    """Run requests of fixed length through a warm engine, at most `concurrency` in flight (None: all it wants).

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
    if has_meter := hasattr(engine, "read_meter"):  # it computes in this process
        reset_peak_memory(devices)
    before = read_meter(engine)
    waiting = deque(requests)
    with GpuWatch(devices) as gpus:
        started_s = time.monotonic()
        while len(ended_at_s) < len(lengths):
            num_free = engine.num_wanted
            if concurrency is not None:
                num_free = min(num_free, concurrency - (len(added_at_s) - len(ended_at_s)))
            for _ in range(min(num_free, len(waiting))):
                request = waiting.popleft()
                added_at_s[request.request_id] = time.monotonic()
                engine.add_request(request)
            for result in engine.step(STEP_S):
                ended_at_s[result.request_id] = time.monotonic()
                reasons[result.finish_reason if result.reason is None else result.reason] += 1
                if _is_complete(result, lengths[result.request_id]):
                    audio_s[result.request_id] = result.num_frames * SAMPLES_PER_FRAME / SAMPLE_RATE_HZ
                for name, value in result.metrics.items():
                    if name.endswith("_s"):
                        stages[name] += value
        wall_s = time.monotonic() - started_s
    spent = read_meter(engine).since(before)
    frames = spent.counts.get("frames", 0)
    latencies_s = {name: ended_at_s[name] - added_at_s[name] for name in audio_s}
    first_at_s, tail_at_s = min(ended_at_s.values()), _time_of_share(audio_s, ended_at_s, STEADY_SHARE)
    utilization, steady_utilization = gpus.utilization(), gpus.utilization(first_at_s, tail_at_s)
    idle_steady = {device: 1 - share for device, share in steady_utilization.items()} if steady_utilization else None
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
        gpu_utilization=mean(utilization.values()) if utilization else None,
        gpu_idle_steady=mean(idle_steady.values()) if idle_steady else None,
        gpu_idle_steady_each=idle_steady,
        peak_memory_gib=peak_memory_gib(devices) if has_meter else None,
        stages_s={name: total / len(requests) for name, total in sorted(stages.items())},
        frames=frames,
        device_ms_per_frame=_ms_per_frame(spent.device_s, frames),
        host_ms_per_frame=_ms_per_frame(spent.host_s, frames),
        counts=dict(spent.counts),
        graphs={name: dict(counts) for name, counts in spent.graphs.items()},
        playback=chunks.stats({name: added_at_s[name] for name in audio_s}) if chunks else None,
        finish_reasons=dict(reasons),
    )


def read_meter(engine: Engine) -> Reading:
    """The times of an engine by stage; nothing of one that does not report them."""
    reading: Reading = getattr(engine, "read_meter", lambda: Reading({}, {}, {}, {}))()
    return reading


def _devices(info: Mapping[str, str]) -> list[torch.device]:
    """The devices of an engine, without duplicates."""
    names = [info[name] for name in ("device", "code2wav_device") if name in info]
    return [torch.device(name) for name in dict.fromkeys(names)]


def _is_complete(result: SpeechResult, num_frames: int) -> bool:
    return (
        result.finish_reason in ("length", "stop")
        and result.num_frames == num_frames
        and result.audio is not None
        and len(result.audio) == num_frames * SAMPLES_PER_FRAME
        and bool(np.isfinite(result.audio).all())
    )


def _time_of_share(audio_s: Mapping[str, float], ended_at_s: Mapping[str, float], share: float) -> float:
    """The time at which `share` of all audio was complete."""
    target_s, done_s = share * sum(audio_s.values()), 0.0
    for name in sorted(audio_s, key=ended_at_s.__getitem__):
        done_s += audio_s[name]
        if done_s >= target_s:
            return ended_at_s[name]
    return max(ended_at_s.values())


def _percentile(values: Collection[float], percent: float) -> float | None:
    return float(np.percentile(list(values), percent)) if values else None


def _ms_per_frame(seconds: Mapping[str, float], frames: int) -> dict[str, float]:
    return {name: 1000 * total / frames for name, total in sorted(seconds.items())} if frames else {}
