"""The throughput of all that surrounds an engine: checks, encoding and group commit, with an engine that costs nothing.

    python -m benchmarks.writer [--rows N] [--clip-s S] [--format NAME] [--out DIR]

One worker as in any run, on the disk of DIR (default: the temporary folder). Results: benchmarks/log.md.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks.million_rows import write_table
from tts_batch.config import JobConfig
from tts_batch.engine.request import SAMPLE_RATE_HZ, EngineConfig, SpeechRequest, SpeechResult
from tts_batch.run.job import run_job

MAX_HELD, STEP_ROWS = 256, 16
CLIP_S = "TTS_BATCH_BENCHMARK_CLIP_S"


class InstantEngine:
    """An engine that returns a clip for every request immediately."""

    sample_rate = SAMPLE_RATE_HZ

    def __init__(self, clip_s: float) -> None:
        samples = np.random.default_rng(0).standard_normal(round((clip_s + 1) * SAMPLE_RATE_HZ), np.float32)
        self._samples = 0.1 * np.cumsum(samples) / np.sqrt(np.arange(1, samples.size + 1))  # brown, no noise
        self._length = round(clip_s * SAMPLE_RATE_HZ)
        self._held: deque[str] = deque()
        self._number = 0

    info: Mapping[str, str] = {}

    @property
    def num_wanted(self) -> int:
        return max(0, MAX_HELD - len(self._held))

    def add_request(self, request: SpeechRequest) -> None:
        self._held.append(request.request_id)

    def abort_request(self, request_id: str) -> None: ...

    def step(self, timeout_s: float) -> list[SpeechResult]:
        if not self._held:
            time.sleep(min(timeout_s, 0.001))
        results = []
        while self._held and len(results) < STEP_ROWS:
            self._number += 1
            start = self._number % SAMPLE_RATE_HZ
            audio = self._samples[start : start + self._length].astype(np.float32)
            results.append(SpeechResult(self._held.popleft(), audio, SAMPLE_RATE_HZ, None, 1, "stop", True))
        return results

    def close(self) -> None: ...


def create(config: EngineConfig) -> InstantEngine:
    return InstantEngine(float(os.environ[CLIP_S]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_000)
    parser.add_argument("--clip-s", type=float, default=5.0)
    parser.add_argument("--format", default="wav")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    os.environ[CLIP_S] = str(args.clip_s)
    with tempfile.TemporaryDirectory(dir=args.out) as folder:
        table = Path(folder) / "rows.jsonl"
        write_table(table, args.rows)
        options = {"model": "tiny-random", "device": "cpu", "engine": "benchmarks.writer:create", "progress": "none"}
        job = JobConfig(data=(str(table),), out=Path(folder) / "out", format=args.format, **options)
        summary = run_job(job)
        worker = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = worker.ru_utime + worker.ru_stime
        print(
            f"{args.format}, clips of {args.clip_s:g} s: {summary.ok} clips, {summary.audio_s_per_s:,.0f} audio-s/s by "
            f"the clock, {summary.audio_s / cpu_s:,.0f} audio-s for each second of the worker's CPU ({cpu_s:.1f} s, "
            f"its start included), {1e3 * cpu_s / summary.ok:.2f} ms a clip; peak {worker.ru_maxrss // 1024} MB"
        )


if __name__ == "__main__":
    main()
