"""What a benchmark prints, and where it says it ran."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from tts_batch.bench.table import describe_machine, print_table

ROUND: dict[str, Any] = {
    "audio_s_per_s": 1411.04,
    "rows_per_s": 349.2,
    "wall_s": 3.12,
    "first_result_s": 0.4,
    "tail_s": 0.31,
    "latency_p50_s": 1.5,
    "latency_p99_s": 2.9,
    "gpu_utilization": 0.963,
    "peak_memory_gib": 71.25,
    "completed": 1087,
    "attempted": 1088,
    "stages_s": {"code2wav_s": 0.25, "talker_s": 1.0},
}
REPORT: dict[str, Any] = {
    "machine": {"device": "NVIDIA H200", "torch": "2.13.0", "commit": "abc1234", "dirty": None},
    "engine": {"runner": "v2", "profile": "throughput"},
    "workload": {"name": "seed-tts", "num_rows": 1088},
    "cache": "warm",
    "concurrency": "max",
    "load_s": 4.5,
    "open_s": 38.3,
    "start_to_first_clip_s": 47.3,
    "rounds": [ROUND, {**ROUND, "gpu_utilization": None, "peak_memory_gib": None}],
}


def test_every_round_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(REPORT)
    lines = capsys.readouterr().out.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("round"))
    on_gpu, on_cpu = (line.split() for line in lines[head + 1 : head + 3])
    assert on_gpu == ["0", "1411.0", "349.2", "3.12", "0.40", "0.31", "1.50", "2.90", "96%", "71.2", "1087/1088"]
    assert on_cpu[8:] == ["n/a", "n/a", "1087/1088"]
    said = "\n".join(lines)
    for words in ("NVIDIA H200", "abc1234", "runner v2", "num_rows 1088", "47.3 s", "code2wav_s 0.250"):
        assert words in said


def test_the_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tts-batch", "bench", "--shape", "1.7b"])
    found = describe_machine()
    assert found["command"] == "tts-batch bench --shape 1.7b"
    assert found["torch"] == torch.__version__
    assert found["device"]
