"""One measurement over an engine that follows a script, on a clock that the script moves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from tts_batch.bench import measure as measure_module
from tts_batch.bench.gpu import GpuWatch
from tts_batch.bench.measure import measure
from tts_batch.engine.meter import Meter, Reading
from tts_batch.engine.request import SamplingParams, SpeechRequest, SpeechResult

Spoil = Callable[[SpeechResult], SpeechResult]


@dataclass
class Clock:
    now_s: float = 100.0

    def monotonic(self) -> float:
        return self.now_s


@dataclass
class ScriptedEngine:
    """Takes whatever is offered, then ends the oldest row: one second for each."""

    clock: Clock
    spoil: dict[str, Spoil] = field(default_factory=dict)
    most_in_flight: int = 0
    info: dict[str, str] = field(default_factory=lambda: {"device": "cpu", "code2wav_device": "cpu"})
    meter: Meter = field(default_factory=Meter)
    in_flight: deque[SpeechRequest] = field(default_factory=deque)

    def read_meter(self) -> Reading:
        return self.meter.read()

    @property
    def num_wanted(self) -> int:
        return 100

    def add_request(self, request: SpeechRequest) -> None:
        self.in_flight.append(request)

    def step(self, timeout_s: float) -> list[SpeechResult]:
        self.most_in_flight = max(self.most_in_flight, len(self.in_flight))
        self.clock.now_s += 1
        self.meter.host_s["decode"] += 0.5
        self.meter.counts["frames"] += 25
        self.meter.graphs["frame_loop"]["hit"] += 25
        return [self._end(self.in_flight.popleft())]

    def _end(self, request: SpeechRequest) -> SpeechResult:
        num_frames = request.max_frames
        audio = np.zeros(num_frames * 1920, np.float32)
        metrics = {"talker_s": 0.5, "num_steps": 9.0}
        good = SpeechResult(request.request_id, audio, 24_000, None, num_frames, "length", False, metrics=metrics)
        return self.spoil.get(request.request_id, lambda result: result)(good)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    clock = Clock()
    monkeypatch.setattr(measure_module, "time", clock)
    return ScriptedEngine(clock)


def make_rows(*frames: int) -> list[SpeechRequest]:
    return [SpeechRequest(f"r{i}", "a", "base", i, num_frames, SamplingParams()) for i, num_frames in enumerate(frames)]


def test_times_rates_and_percentiles(engine: ScriptedEngine) -> None:
    found = measure(engine, make_rows(*[25] * 10), None)
    assert (found.attempted, found.completed, found.finish_reasons) == (10, 10, {"length": 10})
    assert (found.audio_s, found.started_s, found.wall_s) == (20.0, 100.0, 10.0)
    assert (found.audio_s_per_s, found.rows_per_s) == (2.0, 1.0)
    assert (found.first_result_s, found.tail_s) == (1.0, 1.0)  # nine tenths of the audio is there a row before the end
    assert (found.latency_p50_s, found.latency_p99_s) == pytest.approx((5.5, 9.91))  # all are added at once
    assert (found.rtf, found.row_rtf_p50) == pytest.approx((0.5, 2.75))
    assert found.stages_s == {"talker_s": 0.5}
    assert (found.frames, found.host_ms_per_frame) == (250, {"decode": pytest.approx(20.0)})
    assert found.graphs["frame_loop"] == {"hit": 250}
    assert (found.gpu_utilization, found.gpu_idle_steady, found.peak_memory_gib, found.playback) == (None,) * 4
    assert found.as_dict().items() >= {"audio_s_per_s": 2.0, "rows_per_s": 1.0, "wall_s": 10.0}.items()
    assert engine.most_in_flight == 10


@pytest.mark.parametrize("limit", [1, 3])
def test_concurrency_is_a_limit_and_is_used(engine: ScriptedEngine, limit: int) -> None:
    found = measure(engine, make_rows(*[25] * 10), limit)
    assert (engine.most_in_flight, found.completed) == (limit, 10)
    assert found.latency_p50_s == limit


def with_audio(change: Callable[[np.ndarray], np.ndarray | None]) -> Spoil:
    return lambda result: replace(result, audio=change(result.audio))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (with_audio(lambda audio: audio[:-1]), "length"),
        (with_audio(lambda audio: np.where(np.arange(audio.size) == 7, np.nan, audio)), "length"),
        (with_audio(lambda audio: None), "length"),
        (lambda result: replace(result, num_frames=result.num_frames + 1), "length"),
        (lambda result: replace(result, finish_reason="loop"), "loop"),
        (lambda result: replace(result, finish_reason="error", reason="stalled", audio=None), "stalled"),
    ],
)
def test_only_whole_finite_clips_of_their_length_count(engine: ScriptedEngine, spoil: Spoil, reason: str) -> None:
    engine.spoil["r1"] = spoil
    found = measure(engine, make_rows(25, 100, 50), None)
    assert (found.attempted, found.completed, found.audio_s) == (3, 2, 6.0)
    assert sum(found.finish_reasons.values()) == 3
    assert found.finish_reasons[reason] >= 1


def test_a_measurement_without_complete_clips(engine: ScriptedEngine) -> None:
    engine.spoil["r0"] = with_audio(lambda audio: None)
    found = measure(engine, make_rows(25), None)
    assert (found.completed, found.audio_s, found.audio_s_per_s, found.tail_s) == (0, 0.0, 0.0, 0.0)
    assert (found.latency_p50_s, found.latency_p99_s, found.rtf, found.row_rtf_p50) == (None,) * 4


def test_a_pass_counts_only_its_own_work(engine: ScriptedEngine) -> None:
    for _ in range(2):
        found = measure(engine, make_rows(25, 25), None)
        assert (found.counts, found.graphs) == ({"frames": 50}, {"frame_loop": {"hit": 50}})


def test_latencies_are_those_of_whole_clips(engine: ScriptedEngine) -> None:
    engine.spoil["r0"] = with_audio(lambda audio: None)
    found = measure(engine, make_rows(25, 25), None)
    assert found.latency_p50_s == found.latency_p99_s == 2.0


def test_steady_state_is_without_its_beginning_and_its_tail(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two GPUs, half busy; at rest in the second before the first clip, and at work in the tail."""

    class Recorded(GpuWatch):
        def __init__(self, devices: list[torch.device]) -> None:
            super().__init__([torch.device("cuda:0"), torch.device("cuda:1")])
            self._samples = [
                (100 + s / 10, [0, 0] if s < 10 else [100, 100] if s > 90 else [40, 60]) for s in range(100)
            ]

        def __enter__(self) -> GpuWatch:
            return self

    monkeypatch.setattr(measure_module, "GpuWatch", Recorded)
    found = measure(engine, make_rows(*[25] * 10), None)
    assert found.gpu_idle_steady == pytest.approx(0.5)
    assert found.gpu_idle_steady_each == pytest.approx({"cuda:0": 0.6, "cuda:1": 0.4})
    assert found.gpu_utilization == pytest.approx(0.01 * (9 * 100 + 81 * 50) / 100)
