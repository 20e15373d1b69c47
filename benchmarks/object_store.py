"""How fast a run is in an object store, against the same run on the local disk: `python -m benchmarks.object_store`.

The store is moto's S3 server, a program of its own on this machine, so that both runs share its cores with it. The
engine makes tones at a fixed pace (`--rows-per-s`), as a GPU does that needs no core: what is measured is whether clips
leave as fast as they are made.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tts_batch.engine.request import EngineConfig, SpeechRequest, SpeechResult

SAMPLE_RATE_HZ = 24_000


class PacedEngine:
    """Ends one row each 1 / rows_per_s seconds; its clips last `clip_s`."""

    sample_rate = SAMPLE_RATE_HZ
    info = {"runner": "paced", "dtype": "float32"}  # noqa: RUF012

    def __init__(self, rows_per_s: float, clip_s: float) -> None:
        self._row_s, self._held = 1 / rows_per_s, list[SpeechRequest]()
        self._due_s = 0.0
        self._num_frames = round(clip_s * 12.5)
        tone = np.sin(np.arange(self._num_frames * 1_920) / 20)
        self._audio = (0.3 * tone + 0.05 * np.random.default_rng(1).standard_normal(tone.size)).astype(np.float32)

    @property
    def num_wanted(self) -> int:
        return max(0, 64 - len(self._held))

    def add_request(self, request: SpeechRequest) -> None:
        if not self._held:
            self._due_s = time.monotonic() + self._row_s
        self._held.append(request)

    def abort_request(self, request_id: str) -> None:
        self._held = [request for request in self._held if request.request_id != request_id]

    def step(self, timeout_s: float) -> list[SpeechResult]:
        if not self._held:
            return []
        time.sleep(min(timeout_s, max(0.0, self._due_s - time.monotonic())))
        results = []
        while self._held and time.monotonic() >= self._due_s:
            request = self._held.pop(0)
            self._due_s += self._row_s
            results.append(
                SpeechResult(
                    request.request_id, self._audio.copy(), SAMPLE_RATE_HZ, None, self._num_frames, "stop", True
                )
            )
        return results

    def close(self) -> None:
        self._held.clear()


def engine(config: EngineConfig) -> PacedEngine:
    """The factory that `--engine` names."""
    return PacedEngine(float(os.environ["PACED_ROWS_PER_S"]), float(os.environ["PACED_CLIP_S"]))


def run(table: Path, out: str) -> dict[str, Any]:
    """Run `synth` and return its summary."""
    command = [sys.executable, "-m", "tts_batch", "synth", str(table), "--out", out, "--engine"]
    options = ["benchmarks.object_store:engine", "--device", "cpu", "--progress", "none", "--json"]
    checks = ["too_long_factor=off", "too_short_factor=off", "noise_flatness=off"]
    options += [part for check in checks for part in ("--check", check)]
    done = subprocess.run([*command, *options], stdout=subprocess.PIPE, check=True, text=True)
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--rows-per-s", type=float, default=50)
    parser.add_argument("--clip-s", type=float, default=4.0)
    parser.add_argument("--url", help="an empty place in a store of your own, instead of moto")
    given = parser.parse_args()
    os.environ |= {"PACED_ROWS_PER_S": str(given.rows_per_s), "PACED_CLIP_S": str(given.clip_s)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = ({"id": f"row-{number}", "text": f"Sentence {number}."} for number in range(given.rows))
        (folder / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        server = None if given.url else start_server(folder)
        try:
            local = run(folder / "table.jsonl", str(folder / "local"))
            stored = run(folder / "table.jsonl", given.url or "s3://bench/run")
        finally:
            if server is not None:
                server.kill()
                server.wait()
    for where, summary in (("local", local), ("stored", stored)):
        speed = f"{summary['audio_s_per_s']:.1f} audio-s/s, {summary['wall_s']:.1f} s in all"
        print(f"{where}: {summary['ok']} of {summary['rows']} rows ok, {speed}")
    print(f"ratio {stored['audio_s_per_s'] / local['audio_s_per_s']:.3f}")


def start_server(folder: Path) -> subprocess.Popen[bytes]:
    """Start moto's S3 server with an empty bucket `bench`, and let clients find it."""
    import s3fs

    os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ["AWS_ENDPOINT_URL"] = "http://127.0.0.1:5123"
    log = (folder / "server.log").open("wb")
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", "5123"], stdout=log, stderr=log)
    for attempt in range(100):
        try:
            s3fs.S3FileSystem(use_listings_cache=False).mkdir("bench")
            return server
        except OSError:
            time.sleep(0.1 * (attempt > 0) + 0.1)
    server.kill()
    raise SystemExit("moto's server did not start: pip install 'moto[server]' s3fs")


if __name__ == "__main__":
    main()
