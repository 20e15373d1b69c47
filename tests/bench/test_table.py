"""The table of a benchmark, and the description of its machine."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

import pytest
import torch

from tts_batch.bench.player import PlaybackStats
from tts_batch.bench.table import describe_machine, print_table

ROUND: dict[str, Any] = {
    "audio_s_per_s": 1411.04,
    "rows_per_s": 349.2,
    "wall_s": 3.12,
    "first_result_s": 0.4,
    "tail_s": 0.31,
    "latency_p50_s": 1.5,
    "latency_p99_s": 2.9,
    "rtf": 0.000709,
    "gpu_utilization": 0.963,
    "gpu_idle_steady": 0.031,
    "peak_memory_gib": 71.25,
    "completed": 1087,
    "attempted": 1088,
    "stages_s": {"code2wav_s": 0.25, "talker_s": 1.0},
    "frames": 312,
    "device_ms_per_frame": {"code2wav": 2.5, "frame_loop": 9.81},
    "host_ms_per_frame": {"decode": 8.0, "wait for frames": 6.0},
    "counts": {"code2wav_frames": 1000, "decoded_frames": 1500},
    "graphs": {"frame_loop": {"hit": 311, "miss[24]": 1}, "code2wav": {}},
    "playback": None,
}
REPORT: dict[str, Any] = {
    "machine": {"device": "NVIDIA H200", "torch": "2.13.0", "commit": "abc1234", "dirty": None},
    "engine": {"runner": "v2", "profile": "throughput"},
    "workload": {"name": "seed-tts", "num_rows": 1088},
    "cache": "warm",
    "concurrency": "max",
    "load_s": 4.5,
    "open_s": 38.3,
    "capture_code2wav_s": 3.2,
    "start_to_first_clip_s": 47.3,
    "graphs": {"code2wav": {"hit": 7, "failed[(32, 26)]": 1}},
    "rounds": [ROUND, {**ROUND, "gpu_utilization": None, "gpu_idle_steady": None, "peak_memory_gib": None}],
}


def test_each_round_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(REPORT)
    lines = capsys.readouterr().out.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("round"))
    on_gpu, on_cpu = (line.split() for line in lines[head + 1 : head + 3])
    measured = ["1411.0", "349.2", "3.12", "0.40", "0.31", "1.50", "2.90", "0.00071"]
    assert on_gpu == ["0", *measured, "96%", "3%", "71.2", "1087/1088"]
    assert on_cpu == ["1", *measured, "n/a", "n/a", "n/a", "1087/1088"]
    printed = "\n".join(lines)
    for words in (
        "NVIDIA H200",
        "abc1234",
        "runner v2",
        "num_rows 1088",
        "engine 38.3 s (Code2Wav graphs 3.2), start to first clip 47.3 s",
        "code2wav_s 0.250",
        "by NVML",
        "312 frames of the loop, 10.00 ms each",
        "code2wav 2.50, frame_loop 9.81",
        "decode 8.00, wait for frames 6.00",
        "CUDA graphs: frame_loop hit 311, miss[24] 1; code2wav none; Code2Wav decoded 1.50 frames",
        "CUDA graphs of code2wav that could not be captured: failed[(32, 26)] 1",
        "first audio and underrun: n/a",
    ):
        assert words in printed, words


def test_playback_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    stats = PlaybackStats(0.123, 0.456, 7, 5, 1.5)
    print_table({**REPORT, "rounds": [{**ROUND, "playback": asdict(stats)}]})
    line = "first audio p50 0.123 s, p99 0.456 s; 7 underruns in 5 rows, 1.50 s in total"
    assert line in capsys.readouterr().out


def test_a_report_without_frames_or_clips(capsys: pytest.CaptureFixture[str]) -> None:
    nothing = {"frames": 0, "device_ms_per_frame": {}, "host_ms_per_frame": {}, "counts": {}, "graphs": {},
               "latency_p50_s": None, "latency_p99_s": None, "rtf": None}  # fmt: skip
    print_table({**REPORT, "graphs": {}, "rounds": [{**ROUND, **nothing}]})
    printed = capsys.readouterr().out
    assert "0 frames of the loop" in printed
    assert "CUDA graphs: none" in printed


def test_describe_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tts-batch", "bench", "--shape", "1.7b"])
    found = describe_machine()
    assert found["command"] == "tts-batch bench --shape 1.7b"
    assert found["torch"] == torch.__version__
    assert found["device"]
