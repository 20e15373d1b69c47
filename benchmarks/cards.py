"""Smaller cards, which a part of this one stands for: `bench` with so much memory held that only N GiB stay free.

    python -m benchmarks.cards [--free 5 7 11 15 23 47] [--shapes 1.7b 0.6b] [--rows 1088] [--neighbour 4] [--logs DIR]

Another process holds the memory, so that each engine measures what is free as it would on such a card. Below 6 GiB the
engine is to refuse with a sentence and exit status 5. Last, a neighbour takes memory in the middle of a run. Prints a
table; with --json it is written too. It says what fits and what does not die, not how fast another card is.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

GIB = 2**30
TIMEOUT_S = 240
NEIGHBOUR_AT_S = 2.0  # after the rows have begun

HOLD = """
import sys, torch
free, _ = torch.cuda.mem_get_info()
held = [torch.empty(1, device="cuda")]
free, _ = torch.cuda.mem_get_info()
left = free - int(float(sys.argv[1]) * 2**30) if sys.argv[2] == "leave" else int(float(sys.argv[1]) * 2**30)
while left > 0:
    held.append(torch.empty(min(left, 2**30), dtype=torch.uint8, device="cuda"))
    left -= 2**30
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holding(gib: float, what: str) -> Iterator[None]:
    """Hold memory in a process of its own: all but `gib` ("leave"), or `gib` ("take")."""
    command = [sys.executable, "-c", HOLD, str(gib), what]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        if holder.stdout.readline().strip() != "held":
            raise SystemExit("the memory could not be held")
        try:
            yield
        finally:
            holder.stdin.close()
            holder.wait(30)


def bench(shape: str, rows: int, cache: str, log: Path, neighbour_gib: float = 0.0) -> dict[str, object]:
    """Run `tts-batch bench` once, and return what it chose and measured."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "tts_batch", "bench", "--shape", shape, "--rows", str(rows)]
        with log.open("w") as stream:
            process = subprocess.Popen(
                [*command, "--cache", cache, "--json", str(report)], stdout=stream, stderr=subprocess.STDOUT
            )
            if neighbour_gib:
                wait_for(log, "native engine:", process)
                time.sleep(NEIGHBOUR_AT_S)
            with holding(neighbour_gib, "take") if neighbour_gib else nullcontext():
                status = wait_or_kill(process)
        text = log.read_text()
        chosen = re.search(r"([\d.]+) GiB free beside the weights.*", text)
        result: dict[str, object] = {
            "shape": shape,
            "status": status,
            "chosen": chosen.group(0) if chosen else "",
            "out_of_memory_events": len(re.findall(r"out of memory with up to|could not be encoded together", text)),
        }
        if report.exists():
            measured = json.loads(report.read_text())
            last = measured["rounds"][-1]
            names = ("audio_s_per_s", "gpu_idle_steady", "completed", "attempted", "peak_memory_gib")
            result |= {name: last[name] for name in names}
            knobs = ("max_num_seqs", "kv_tokens", "code2wav_frames", "prefill_tokens", "reference_s")
            result |= {name: measured["engine"].get(name) for name in knobs}
        else:
            result["said"] = text.strip().splitlines()[-1][:400] if text.strip() else ""
        return result


def wait_or_kill(process: subprocess.Popen[bytes]) -> int | str:
    try:
        return process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return f"none after {TIMEOUT_S} s"


def wait_for(log: Path, words: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until the log has these words, or the process ends."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while words not in log.read_text() and process.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.05)


def line(name: str, result: dict[str, object]) -> str:
    """A row of the table."""
    if "audio_s_per_s" not in result:
        return f"| {name} | {result['shape']} | exit {result['status']}: {result.get('said')} | | | | | |"
    idle = result["gpu_idle_steady"]
    return (
        f"| {name} | {result['shape']} | {result['max_num_seqs']} | {result['kv_tokens']} | "
        f"{result['code2wav_frames']} | {result['audio_s_per_s']:,.0f} | "
        f"{'n/a' if idle is None else f'{idle:.0%}'} | {result['out_of_memory_events']} | "
        f"{result['completed']}/{result['attempted']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--free", type=float, nargs="*", default=[5, 7, 11, 15, 23, 47])
    parser.add_argument("--shapes", nargs="+", default=["1.7b", "0.6b"])
    parser.add_argument("--rows", type=int, default=1_088)
    parser.add_argument("--neighbour", type=float, default=4.0, help="GiB that a neighbour takes; 0: none")
    parser.add_argument(
        "--cache", choices=["warm", "cold"], default="warm", help="as of bench; cold takes half the time"
    )
    parser.add_argument("--logs", type=Path, default=Path("."), help="where each engine's log is written")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    results = []
    print("| GiB free | shape | rows | KV tokens | Code2Wav frames | audio-s/s | GPU idle | OOM events | completed |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |", flush=True)
    for gib in args.free:
        with holding(gib, "leave"):
            for shape in args.shapes if gib >= 6 else ["1.7b"]:
                log = args.logs / f"cards-{gib:g}-{shape}.log"
                results.append({"free_gib": gib, **bench(shape, args.rows, args.cache, log)})
                print(line(f"{gib:g}", results[-1]), flush=True)
    if args.neighbour:
        with holding(15, "leave"):
            results.append({"free_gib": 15, "neighbour": args.neighbour})
            results[-1] |= bench(
                args.shapes[0], 2 * args.rows, args.cache, args.logs / "cards-neighbour.log", args.neighbour
            )
            print(line(f"15, then {15 - args.neighbour:g}", results[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
