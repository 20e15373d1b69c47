"""What a million rows cost beside their clips: seconds and memory of planning a table without references, and of
reading the journal of a run over it, as resuming and `status` do.

    python benchmarks/million_rows.py [--rows N] [--part plan|journal]

It runs on any machine, on the tiny model. benchmarks/log.md keeps what came.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tts_batch.config import JobConfig
from tts_batch.plan.planner import make_plan
from tts_batch.run.clips import clip_path
from tts_batch.run.index import JournalIndex
from tts_batch.run.journal import Outcome, SegmentWriter, segment_path

WORDS = (
    "the of and to in you that it he was for on are with his they at be this have from one had by word but not what "
    "all were we when your can said there use an each which she do how their if will up other about out many then "
    "them these so some her would make like him into time has look two more write go see number no way could people "
    "my than first water been call who oil its now find long down day did get come made may part"
)


def write_table(path: Path, num_rows: int) -> None:
    """Sentences of 5 to 25 words, one JSON object a line."""
    words, draw = WORDS.split(), random.Random(0)
    with path.open("w", encoding="utf-8") as table:
        for number in range(num_rows):
            text = " ".join(draw.choices(words, k=draw.randint(5, 25))) + "."
            row = {"id": f"row-{number:07}", "text": text, "speaker": "vivian", "language": "English"}
            table.write(json.dumps(row) + "\n")


def measure(name: str, num_rows: int, work: Callable[[], object]) -> None:
    """Print what `work` over `num_rows` took, and this process's peak memory so far."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{name}: {num_rows:,} rows in {wall:.1f} s ({cpu:.1f} s of CPU, {1e6 * wall / num_rows:.1f} µs a row), "
        f"peak {peak_mb:.0f} MB"
    )


LINE = Outcome(
    *("", "", "", "ok", 240_044, 5.0),
    audio_digest="0123abcd",
    sample_rate=24_000,
    num_frames=62,
    max_frames=192,
    finish_reason="stop",
    eos=True,
    attempts=1,
    seed=2**62,
    attempt_seeds=(2**62,),
    effective_language="english",
    effective_speaker="vivian",
    instruct_applied=False,
    model="tiny",
    engine="native",
    runner="v2",
    dtype="bfloat16",
    peak=0.5,
    rms_dbfs=-20.0,
    clipped_samples=0,
    checks={"length_ratio": 1.02, "head_silence_s": 0.1, "inner_silence_s": 0.2, "flatness": 0.05},
)


def write_journal(out: Path, num_rows: int) -> None:
    """A line for every row of a finished run."""
    segment = SegmentWriter(segment_path(out / "journal", "w0", 1, 1))
    for start in range(0, num_rows, 256):
        ids = (f"row-{number:07}" for number in range(start, min(start + 256, num_rows)))
        segment.append(replace(LINE, id=row_id, fingerprint=row_id, audio=clip_path(row_id)) for row_id in ids)
    segment.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--part", choices=["plan", "journal"], default="plan")
    args = parser.parse_args()
    num_rows: int = args.rows
    with tempfile.TemporaryDirectory() as folder:
        if args.part == "journal":
            measure("write the journal", num_rows, lambda: write_journal(Path(folder), num_rows))
            measure("scan the journal", num_rows, lambda: JournalIndex(Path(folder)))
            return
        table = Path(folder) / "rows.jsonl"
        measure("make the table", num_rows, lambda: write_table(table, num_rows))
        job = JobConfig(data=(str(table),), out=Path(folder) / "out", model="tiny")
        tenth = job.model_copy(update={"limit": num_rows // 10})
        measure("plan a tenth", num_rows // 10, lambda: make_plan(tenth))  # what the peak grows by is the price of rows
        measure("plan", num_rows, lambda: make_plan(job))


if __name__ == "__main__":
    main()
