"""The end-to-end throughput of `synth` on a GPU, from a table with voices to checked clips on a disk.

    python -m benchmarks.synth [--rows N] [--voices N] [--shape 1.7b | --model CHECKPOINT --device cpu] [--out DIR]

The rows are those of `tts-batch bench`, as JSON lines beside a wav file for each voice; the engine has random weights
in a released shape, or a Base checkpoint, and ends rows at the length that the workload sets. All checks run, with
limits that pass every clip. Time counts from the ready engine to the written manifest. Results: benchmarks/log.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tts_batch.bench.engines import load_model, open_bench_engine, random_model
from tts_batch.bench.workload import Workload, with_length
from tts_batch.config import JobConfig
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.request import SAMPLE_RATE_HZ, EngineConfig, SpeechRequest, SpeechResult
from tts_batch.model.text_tokenizer import TextTokenizer
from tts_batch.model.tiny import build_tiny
from tts_batch.run.job import run_job
from tts_batch.store.clips import encode_wav

SHAPE = "TTS_BATCH_BENCHMARK_SHAPE"  # passes the shape to the worker; empty: a checkpoint
NOTHING_FAILS: Mapping[str, float] = {
    "silent_peak_dbfs": -300.0, "too_long_factor": 1e6, "too_short_factor": 0.0, "long_silence_s": 1e6,
    "noise_flatness": 2.0, "ref_correlation": 2.0,
}  # fmt: skip


class FixedLengthEngine:
    """A NativeEngine whose requests have exactly `max_frames` frames and are reported as ended by EOS."""

    sample_rate = SAMPLE_RATE_HZ

    def __init__(self, engine: NativeEngine) -> None:
        self._engine, self.info = engine, engine.info
        self._lengths: dict[str, int] = {}
        self._opened_s = time.monotonic()
        self._added_s: list[float] = []  # since the engine was opened, of each request
        self._ended_s: list[float] = []  # of each result

    @property
    def num_wanted(self) -> int:
        return self._engine.num_wanted

    def add_request(self, request: SpeechRequest) -> None:
        self._lengths[request.request_id] = request.max_frames
        self._added_s.append(time.monotonic() - self._opened_s)
        self._engine.add_request(with_length(request, request.max_frames))

    def abort_request(self, request_id: str) -> None:
        self._engine.abort_request(request_id)

    def step(self, timeout_s: float) -> list[SpeechResult]:
        results = [self._ended(result) for result in self._engine.step(timeout_s)]
        self._ended_s += [time.monotonic() - self._opened_s] * len(results)
        return results

    def close(self) -> None:
        """Close the engine, and print when requests came and results went, for the worker's log."""
        closing_s = time.monotonic() - self._opened_s
        for name, times_s in (("requests", self._added_s), ("results", self._ended_s)):
            marks = [f"{times_s[i]:.1f}" for i in range(0, len(times_s), max(1, len(times_s) // 16))]
            print(f"timeline of {name}, s: {' '.join(marks)}, last {times_s[-1]:.1f}", file=sys.stderr)
        print(f"timeline: closing at {closing_s:.1f} s\n" + "\n".join(self._spent()), file=sys.stderr)
        self._engine.close()

    def _spent(self) -> list[str]:
        spent = self._engine.read_meter()
        frames = max(1, spent.counts.get("frames", 0))
        return [
            f"timeline: {frames} frames of {spent.counts.get('row_frames', 0) / frames:.0f} rows",
            *(
                f"timeline: {where} " + ", ".join(f"{name} {total:.2f}" for name, total in sorted(totals.items()))
                for where, totals in (("device s:", spent.device_s), ("host s:", spent.host_s))
            ),
        ]

    def _ended(self, result: SpeechResult) -> SpeechResult:
        is_whole = result.num_frames == self._lengths.pop(result.request_id) and result.finish_reason == "length"
        return replace(result, finish_reason="stop", eos=True) if is_whole else result


def create(config: EngineConfig) -> FixedLengthEngine:
    """Open the engine, in the worker."""
    shape = os.environ[SHAPE]
    engine, _ = open_bench_engine(random_model(shape, config) if shape else load_model(config), config, owns_model=True)
    return FixedLengthEngine(engine)


def workload_requests(num_rows: int, num_voices: int) -> list[SpeechRequest]:
    tokenizer = TextTokenizer(build_tiny("tiny-random", "base"))
    return Workload("seed-tts", num_rows, num_voices).requests(lambda text: len(tokenizer.encode(text)))


def write_table(folder: Path, requests: Sequence[SpeechRequest]) -> Path:
    """The rows as JSON lines, and every voice as a wav file."""
    voices = {request.reference.key: request.reference for request in requests if request.reference}
    for key, reference in voices.items():
        (folder / f"{key}.wav").write_bytes(encode_wav(reference.load(), SAMPLE_RATE_HZ))
    table = folder / "rows.jsonl"
    with table.open("w", encoding="utf-8") as lines:
        for request in requests:
            reference = request.reference
            assert reference is not None
            voice = {"ref_audio": f"{reference.key}.wav", "ref_text": reference.text}
            row = {"id": request.request_id, "text": request.text, "max_frames": request.max_frames}
            lines.write(json.dumps({**row, **voice, "language": "english", "non_streaming": False}) + "\n")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_352)
    parser.add_argument("--voices", type=int, default=666)
    parser.add_argument("--shape", default="1.7b")
    parser.add_argument("--model", default=None)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    os.environ[SHAPE] = "" if args.model else args.shape
    with tempfile.TemporaryDirectory(dir=args.out) as folder:
        table = write_table(Path(folder), workload_requests(args.rows, args.voices))
        job = JobConfig(
            data=(str(table),),
            out=Path(folder) / "out",
            model=args.model or "tiny-random",  # with a shape, only the plan uses it
            engine="benchmarks.synth:create",
            device=args.device,
            runner="v2",
            checks=dict(NOTHING_FAILS),
            progress="none",
        )
        summary = run_job(job)
        for log in sorted(job.out.glob("journal/*/stderr.log")):
            print(*(line for line in log.read_text().splitlines() if "waited" in line or "timeline" in line), sep="\n")
        print(
            f"{summary.ok} of {args.rows} rows are clips, {summary.failed} failed; {summary.audio_s_per_s:,.0f} "
            f"audio-s/s from the ready engine to the manifest; {summary.wall_s:.1f} s in total"
        )


if __name__ == "__main__":
    main()
