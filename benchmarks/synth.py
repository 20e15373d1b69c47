"""What `synth` makes of an engine's speed: a whole run on a GPU, from a table with voices to checked clips on a disk.

    python -m benchmarks.synth [--rows N] [--voices N] [--shape 1.7b | --model CHECKPOINT --device cpu] [--out DIR]

The rows are those of `tts-batch bench`, as JSON lines beside a wav file for each voice; the engine has random weights
in a released shape, or a Base checkpoint, and ends rows where the workload says. All checks are made, and nothing fails
one. The clock runs from the moment when the engine is ready until the manifest is written. benchmarks/log.md keeps what
came.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tts_batch.bench.engines import load_model, open_bench_engine, random_model
from tts_batch.bench.workload import BenchRow, Workload
from tts_batch.config import JobConfig
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.request import SAMPLE_RATE_HZ, EngineConfig
from tts_batch.model.text_tokenizer import TextTokenizer
from tts_batch.model.tiny import build_tiny
from tts_batch.run.job import run_job
from tts_batch.store.clips import encode_wav

SETTINGS = "TTS_BATCH_BENCHMARK_SYNTH"  # how the worker learns the shape and the workload
NOTHING_FAILS: Mapping[str, float] = {
    "silent_peak_dbfs": -300.0, "too_long_factor": 1e6, "too_short_factor": 0.0, "long_silence_s": 1e6,
    "noise_flatness": 2.0, "ref_correlation": 2.0,
}  # fmt: skip


def create(config: EngineConfig) -> NativeEngine:
    """What the worker opens. The rows come from a table, so that only their ids lead to their lengths."""
    settings = json.loads(os.environ[SETTINGS])
    shape = settings["shape"]
    engine, preparer = open_bench_engine(random_model(shape, config) if shape else load_model(config), config)
    preparer.ends = {row.request.request_id: row.num_frames for row in workload_rows(settings)}
    return engine


def workload_rows(settings: Mapping[str, Any]) -> list[BenchRow]:
    tokenizer = TextTokenizer(build_tiny("tiny-random", "base"))
    workload = Workload("seed-tts", settings["rows"], settings["voices"])
    return workload.rows(lambda text: len(tokenizer.encode(text)))


def write_table(folder: Path, rows: Sequence[BenchRow]) -> Path:
    """The rows as JSON lines, and every voice as a wav file."""
    voices = {row.request.reference.key: row.request.reference for row in rows if row.request.reference}
    for key, reference in voices.items():
        (folder / f"{key}.wav").write_bytes(encode_wav(reference.load(), SAMPLE_RATE_HZ))
    table = folder / "rows.jsonl"
    with table.open("w", encoding="utf-8") as lines:
        for row in rows:
            request, reference = row.request, row.request.reference
            assert reference is not None
            voice = {"ref_audio": f"{reference.key}.wav", "ref_text": reference.text}
            told = {"id": request.request_id, "text": request.text, "max_frames": request.max_frames}
            lines.write(json.dumps({**told, **voice, "language": "english", "non_streaming": False}) + "\n")
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
    settings = {"shape": None if args.model else args.shape, "rows": args.rows, "voices": args.voices}
    os.environ[SETTINGS] = json.dumps(settings)
    with tempfile.TemporaryDirectory(dir=args.out) as folder:
        table = write_table(Path(folder), workload_rows(settings))
        job = JobConfig(
            data=(str(table),),
            out=Path(folder) / "out",
            model=args.model or "tiny-noise",  # with a shape it is for the plan alone
            engine="benchmarks.synth:create",
            device=args.device,
            runner="v2",
            checks=dict(NOTHING_FAILS),
            progress="none",
        )
        summary = run_job(job)
        for told in sorted(job.out.glob("journal/*/stderr.log")):
            print(*(line for line in told.read_text().splitlines() if "waits for the engine" in line), sep="\n")
        print(
            f"{summary.ok} of {args.rows} rows are clips, {summary.failed} failed; {summary.audio_s_per_s:,.0f} "
            f"audio-s/s from the ready engine to the manifest; {summary.wall_s:.1f} s in all"
        )


if __name__ == "__main__":
    main()
