"""One variant of the checks of --engine vllm on a GPU; benchmarks/vllm_gpu.sh prepares the machine for it.

    eager     256 rows, killed in the middle and resumed; then `bench` of vllm (eager) and of native, and the ratio
    graphs    `bench` of vllm with CUDA graphs (a start of five to six minutes), then native, and the ratio
    chunked   64 rows with async_chunk, whole utterances and chunks, both eager
    tiny      the trained tiny checkpoint, greedy: which leading frames of vllm are those of native

Every step has a time limit, and the next ones run whatever became of it. Prints a line for each; summary.json has all.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

FRAMES = 52
ROWS = int(os.environ.get("ROWS", "256"))  # fewer, for a rehearsal
SAMPLES_PER_FRAME = 1_920
CHECKS_OFF = (  # the weights are random: noise of a length that has nothing to do with the text
    "silent_peak_dbfs", "too_long_factor", "too_short_factor", "long_silence_s", "noise_flatness", "ref_correlation",
)  # fmt: skip


Watch = Callable[[subprocess.Popen[bytes]], Any]


class Steps:
    """Runs commands within limits and keeps what became of them."""

    def __init__(self, work: Path, out: Path, limit_s: float) -> None:
        self.work, self.out = work, out
        self.logs = work / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self._ends_at = time.monotonic() + limit_s
        self.summary: dict[str, Any] = {}

    @property
    def left_s(self) -> float:
        return self._ends_at - time.monotonic()

    def note(self, name: str, **facts: Any) -> None:
        self.summary[name] = facts
        print(name, json.dumps(facts), flush=True)
        (self.out / "summary.json").write_text(json.dumps(self.summary, indent=1))

    def command(self, name: str, command: list[str], limit_s: float, watch: Watch | None = None) -> int:
        """Run a command, its output in a log; `watch` may end it. Returns its status, 124 when the limit was passed."""
        limit_s = max(1.0, min(limit_s, self.left_s))
        started_s, log = time.monotonic(), self.logs / f"{name}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
            try:
                watched = watch(process) if watch else None
                status = process.wait(max(1.0, limit_s - (time.monotonic() - started_s)))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                status, watched = 124, None
                process.wait()
        tail = log.read_text(errors="replace").strip().splitlines()[-6:]
        took_s = round(time.monotonic() - started_s, 1)
        self.note(name, status=status, took_s=took_s, tail=[] if status == 0 else [line[:300] for line in tail])
        if watched is not None:
            self.summary[name]["watched"] = watched
        return status


def tts_batch(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tts_batch", *arguments]


def checkpoint(steps: Steps) -> Path:
    """The random-weight checkpoint, written on the first run."""
    folder = steps.work / "cache" / "random-1.7b"
    code = (
        "import sys; from pathlib import Path; from tts_batch.bench.checkpoint import write_random_checkpoint as w; "
        "w('1.7b', Path(sys.argv[1]), Path(sys.argv[1]).parent)"
    )
    steps.command("checkpoint", [sys.executable, "-c", code, str(folder)], 150)
    return folder


def write_table(steps: Steps, count: int) -> Path:
    """Rows that clone eight voices."""
    import numpy as np
    import soundfile

    folder = steps.work / "table"
    folder.mkdir(exist_ok=True)
    t = np.arange(4 * 24_000) / 24_000
    for voice in range(8):
        wave = sum(np.sin(2 * np.pi * (110 + 15 * voice) * k * t) / k for k in range(1, 9))
        soundfile.write(folder / f"voice{voice}.wav", 0.1 * wave * (0.3 + np.abs(np.sin(2 * np.pi * 2 * t))), 24_000)
    rows = [
        {
            "id": f"row{n:04d}",
            "text": f"Sentence number {n} is spoken by one of several voices, and it is long enough.",
            "language": "english",
            "ref_audio": f"voice{n % 8}.wav",
            "ref_text": "A hum of four seconds.",
        }
        for n in range(count)
    ]
    table = folder / f"rows{count}.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return table


def synth(steps: Steps, name: str, model: Path, out: Path, rows: int, *options: str) -> list[str]:
    off = [argument for check in CHECKS_OFF for argument in ("--check", f"{check}=off")]
    return tts_batch(
        "synth", str(write_table(steps, rows)), "--out", str(out), "--model", str(model), "--engine", "vllm",
        "--min-new-tokens", str(FRAMES), "--max-frames", str(FRAMES + 20), "--stall-timeout", "60",
        "--progress", "plain", "--device", "cuda", *off, *options,
    )  # fmt: skip


def count_clips(out: Path) -> int:
    return sum(1 for _ in out.glob("*/*.wav"))


def check_clips(steps: Steps, name: str, out: Path) -> None:
    """Every clip must have exactly FRAMES frames."""
    import pyarrow.parquet as pq
    import soundfile

    try:
        rows = pq.read_table(out / "manifest.parquet").to_pylist()
    except (OSError, ValueError) as error:
        steps.note(f"{name}_clips", error=str(error), files=count_clips(out))
        return
    samples = Counter(soundfile.info(out / row["audio"]).frames for row in rows if row["audio"])
    reasons = Counter(row["reason"] for row in rows if row["status"] != "ok")
    messages = sorted({str(row["message"])[:200] for row in rows if row["status"] != "ok"})[:5]
    steps.note(
        f"{name}_clips",
        rows=len(rows),
        ok=sum(row["status"] == "ok" for row in rows),
        right_length=samples[FRAMES * SAMPLES_PER_FRAME],
        lengths={str(length): count for length, count in samples.most_common(6)},
        reasons=dict(reasons),
        messages=messages,
    )


def processes() -> list[int]:
    """Those of a host, a stage or a guard, by their command lines."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        words = (b"tts_batch.worker", b"vllm.host", b"VLLM", b"StageEngine", b"multiprocessing.spawn", b"killpg(int")
        if state != "Z" and any(word in command for word in words):
            found.append(int(folder.name))
    return found


def run_eager(steps: Steps) -> None:
    model, out = checkpoint(steps), steps.work / "wavs-eager"
    shutil.rmtree(out, ignore_errors=True)
    command = synth(steps, "synth", model, out, ROWS, "--no-cuda-graph")

    def kill_in_the_middle(process: subprocess.Popen[bytes]) -> dict[str, Any]:
        started_s = time.monotonic()
        while process.poll() is None and count_clips(out) < ROWS // 4 and time.monotonic() - started_s < 230:
            time.sleep(0.05)
        first_s, clips = time.monotonic() - started_s, count_clips(out)
        before = len(processes())
        process.kill()  # the parent alone: everything else must notice
        killed_s = time.monotonic()
        while (alive := processes()) and time.monotonic() - killed_s < 30:
            time.sleep(0.1)
        gone_s = round(time.monotonic() - killed_s, 1)
        facts = {
            "after_s": round(first_s, 1),
            "clips": clips,
            "processes": before,
            "left": len(alive),
            "gone_s": gone_s,
        }
        print("killed", json.dumps(facts), flush=True)
        return facts

    steps.command("synth_killed", command, 250, kill_in_the_middle)
    transport: list[str] = []
    if not count_clips(out):  # the whole-payload transport, which once stalled: go on with the other
        transport = ["--engine-option", "async_chunk=true"]
    steps.command("synth_resumed", [*command, *transport], 180)
    check_clips(steps, "synth_resumed", out)
    run_bench(steps, model, "--no-cuda-graph", *transport)


def run_bench(steps: Steps, model: Path, *vllm_options: str) -> None:
    """The same workload with both engines: 256 rows of 52 frames, x-vector only."""
    common = ["bench", "--model", str(model), "--workload", "fixed", "--rows", str(ROWS), "--rounds", "2"]
    best: dict[str, float] = {}
    for engine, options, limit_s in (("vllm", vllm_options, 460.0), ("native", (), 120.0)):
        result = steps.work / f"bench-{engine}.json"
        result.unlink(missing_ok=True)
        steps.command(
            f"bench_{engine}", tts_batch(*common, "--engine", engine, "--json", str(result), *options), limit_s
        )
        if not result.exists():
            continue
        report = json.loads(result.read_text())
        rounds = report["rounds"]
        best[engine] = max(one["audio_s_per_s"] for one in rounds)
        steps.note(
            f"bench_{engine}_rates",
            audio_s_per_s=[round(one["audio_s_per_s"], 1) for one in rounds],
            completed=[f"{one['completed']}/{one['attempted']}" for one in rounds],
            reasons=[one["finish_reasons"] for one in rounds],
            open_s=round(report["open_s"], 1),
            info=report["engine"],
        )
    if len(best) == 2 and best["vllm"]:
        steps.note("ratio", native_to_vllm=round(best["native"] / best["vllm"], 2), **best)


def run_graphs(steps: Steps) -> None:
    run_bench(steps, checkpoint(steps))


def run_chunked(steps: Steps) -> None:
    model = checkpoint(steps)
    for name, options in (
        ("async_whole", ("--engine-option", "async_chunk=true")),
        ("async_chunks", ("--code2wav-mode", "chunked")),
        ("runner_v1", ("--runner", "v1")),
    ):
        out = steps.work / f"wavs-{name}"
        shutil.rmtree(out, ignore_errors=True)
        steps.command(name, synth(steps, name, model, out, 64, "--no-cuda-graph", *options), 170)
        check_clips(steps, name, out)


def run_tiny(steps: Steps) -> None:
    """Greedy clips of the trained tiny model by both engines, compared frame by frame."""
    script = Path(__file__).with_name("vllm_codes.py")
    result = steps.work / "tiny.json"
    result.unlink(missing_ok=True)
    steps.command("tiny", [sys.executable, str(script), "--json", str(result)], 400)
    if result.exists():
        steps.note("tiny_frames", **json.loads(result.read_text()))
    log = (steps.logs / "tiny.log").read_text(errors="replace")
    steps.note("tiny_errors", lines=[line[:300] for line in log.splitlines() if re.search(r"Error\b", line)][-8:])


VARIANTS = {"eager": run_eager, "graphs": run_graphs, "chunked": run_chunked, "tiny": run_tiny}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", choices=VARIANTS)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit-s", type=float, default=500.0)
    asked = parser.parse_args()
    steps = Steps(asked.work, asked.out, asked.limit_s)
    try:
        VARIANTS[asked.variant](steps)
    except Exception as error:
        traceback.print_exc()
        steps.note("failed", error=repr(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
