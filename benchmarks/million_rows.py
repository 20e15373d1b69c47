"""Time and memory of a million rows without synthesis: planning them, reading their journal, or a whole run.

    python -m benchmarks.million_rows [--rows N] [--part plan|journal|run] [--out DIR]

The plan is that of a table without references; the journal is read as resuming and `status` read it; the run has an
engine that costs nothing. Any machine will do. A run writes N files of 4 KB under DIR (default: the temporary folder)
and removes them at its end. Results: benchmarks/log.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tts_batch.config import JobConfig
from tts_batch.plan.planner import make_plan
from tts_batch.store.clips import clip_path
from tts_batch.store.index import JournalIndex
from tts_batch.store.journal import Outcome, SegmentWriter, list_segments, segment_path

WORDS = (
    "the of and to in you that it he was for on are with his they at be this have from one had by word but not what "
    "all were we when your can said there use an each which she do how their if will up other about out many then "
    "them these so some her would make like him into time has look two more write go see number no way could people "
    "my than first water been call who oil its now find long down day did get come made may part"
)


def write_table(path: Path, num_rows: int, num_words: tuple[int, int] = (5, 25)) -> None:
    """Write rows as JSON lines, with random sentences of `num_words` (least, most) words."""
    words, draw = WORDS.split(), random.Random(0)
    with path.open("w", encoding="utf-8") as table:
        for number in range(num_rows):
            text = " ".join(draw.choices(words, k=draw.randint(*num_words))) + "."
            row = {"id": f"row-{number:07}", "text": text, "speaker": "vivian", "language": "English"}
            table.write(json.dumps(row) + "\n")


def measure(name: str, num_rows: int, work: Callable[[], object]) -> None:
    """Run `work` over `num_rows` and print its time and this process's peak memory so far."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{name}: {num_rows:,} rows in {wall:.1f} s ({cpu:.1f} s of CPU, {1e6 * wall / num_rows:.1f} µs a row), "
        f"peak {peak_mb:.0f} MB"
    )


LINE = Outcome(
    *("", "", "", "ok"),
    audio_bytes=240_044,
    duration_s=5.0,
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
    model="tiny-random",
    engine="native",
    runner="v2",
    dtype="bfloat16",
    peak=0.5,
    rms_dbfs=-20.0,
    clipped_samples=0,
    checks={"length_ratio": 1.02, "head_silence_s": 0.1, "inner_silence_s": 0.2, "flatness": 0.05},
)


def write_journal(out: Path, num_rows: int) -> None:
    """Write the journal of a finished run: a line for every row."""
    segment = SegmentWriter(segment_path(out / "journal", "w0", 1, 1))
    for start in range(0, num_rows, 256):
        ids = (f"row-{number:07}" for number in range(start, min(start + 256, num_rows)))
        segment.append(replace(LINE, id=row_id, fingerprint=row_id, audio=clip_path(row_id)) for row_id in ids)
    segment.close()


CLIP_S = "0.08"
POLL_S = 0.2
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def measure_run(folder: Path, num_rows: int) -> None:
    """Run a table of short rows as a user would, printing time and memory as rows end; then resume it."""
    table, out = folder / "rows.jsonl", folder / "out"
    write_table(table, num_rows, (1, 2))
    model = ["--model", "tiny-random", "--engine", "benchmarks.writer:create", "--device", "cpu"]
    synth = ["synth", str(table), "--out", str(out), *model, "--progress", "none"]
    is_status_measured = False
    with _program(synth) as parent:
        started, lines = time.perf_counter(), _LineCount(out / "journal")
        for tenth in range(1, 10):
            while lines.count() < num_rows * tenth // 10 and parent.poll() is None:
                time.sleep(POLL_S)
            if parent.poll() is not None:
                break
            _print_usage(lines.count(), time.perf_counter() - started, parent.pid)
            if tenth == 5:
                is_status_measured = True
                _time_program("status, while it runs", ["status", str(out)])
        status, usage = os.wait4(parent.pid, 0)[1:]
        parent.returncode = os.waitstatus_to_exitcode(status)
    assert parent.returncode == 0 and is_status_measured, f"the run ended with status {parent.returncode}"
    wall_s = time.perf_counter() - started
    cpu_s = usage.ru_utime + usage.ru_stime  # includes the worker, which the parent has waited for
    print(
        f"run: {num_rows:,} rows in {wall_s:.1f} s, {1e6 * wall_s / num_rows:.0f} µs a row; {cpu_s:.1f} s of CPU, "
        f"peak {usage.ru_maxrss // 1024} MB"
    )
    _time_program("the same command again", synth)
    _time_program("status, at the end", ["status", str(out)])
    measure("scan the journal", num_rows, lambda: JournalIndex(out))


def _program(arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TTS_BATCH_BENCHMARK_CLIP_S": CLIP_S, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tts_batch", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def _time_program(name: str, arguments: Sequence[str]) -> None:
    started = time.perf_counter()
    with _program(arguments) as program:
        status, usage = os.wait4(program.pid, 0)[1:]
        program.returncode = os.waitstatus_to_exitcode(status)
    wall_s, cpu_s = time.perf_counter() - started, usage.ru_utime + usage.ru_stime
    print(
        f"{name}: {wall_s:.1f} s ({cpu_s:.1f} s of CPU), peak {usage.ru_maxrss // 1024} MB, status {program.returncode}"
    )


class _LineCount:
    """Counts the lines of a journal, and so the rows that have ended; reads each line once."""

    def __init__(self, journal: Path) -> None:
        self._journal, self._lines, self._offsets = journal, 0, dict[Path, int]()

    def count(self) -> int:
        for segment in list_segments(self._journal):
            with segment.open("rb") as file:
                file.seek(self._offsets.get(segment, 0))
                new = file.read()
            self._offsets[segment] = self._offsets.get(segment, 0) + len(new)
            self._lines += new.count(b"\n")
        return self._lines


def _print_usage(rows: int, wall_s: float, parent: int) -> None:
    """Print the memory and CPU time that the parent and its workers have used so far, from /proc."""
    line = f"{rows:,} rows after {wall_s:.0f} s"
    for name, process in [("parent", parent), *(("worker", child) for child in _children(parent))]:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
        if "VmRSS" not in status:  # it has ended, and waits for its parent
            continue
        times = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        cpu_s = (int(times[11]) + int(times[12])) / _TICKS_PER_S
        now_mb, peak_mb = (int(status[key].split()[0]) // 1024 for key in ("VmRSS", "VmHWM"))
        line += f"; {name} {now_mb} MB, peak {peak_mb} MB, {cpu_s:.1f} s of CPU, {1e6 * cpu_s / rows:.0f} µs a row"
    print(line, flush=True)


def _children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--part", choices=["plan", "journal", "run"], default="plan")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    num_rows: int = args.rows
    with tempfile.TemporaryDirectory(dir=args.out) as folder:
        if args.part == "run":
            measure_run(Path(folder), num_rows)
            return
        if args.part == "journal":
            measure("write the journal", num_rows, lambda: write_journal(Path(folder), num_rows))
            measure("scan the journal", num_rows, lambda: JournalIndex(Path(folder)))
            return
        table = Path(folder) / "rows.jsonl"
        measure("make the table", num_rows, lambda: write_table(table, num_rows))
        job = JobConfig(data=(str(table),), out=Path(folder) / "out", model="tiny-random")
        tenth = job.model_copy(update={"limit": num_rows // 10})
        measure("plan a tenth", num_rows // 10, lambda: make_plan(tenth))  # the growth of the peak is the cost of rows
        measure("plan", num_rows, lambda: make_plan(job))


if __name__ == "__main__":
    main()
