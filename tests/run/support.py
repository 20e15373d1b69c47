"""Small tables, runs with the fake engine in real worker processes, and what to compare of them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tts_batch.config import JobConfig
from tts_batch.engine.request import SamplingParams, SpeechResult
from tts_batch.ipc.messages import ActiveRow, PieceRequest, RowRequest
from tts_batch.run.row_requests import piece_id
from tts_batch.store.journal import list_segments, read_outcomes

ROOT = Path(__file__).parents[2]
ENGINE = "tests.fake_engine:create"


def make_rows(count: int) -> list[dict[str, Any]]:
    return [{"id": f"row-{n}", "text": f"Sentence number {n} of the table.", "speaker": "vivian"} for n in range(count)]


def write_table(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def make_config(folder: Path, rows: int | Iterable[Mapping[str, Any]] = 12, **options: Any) -> JobConfig:
    table = write_table(folder / "table.jsonl", make_rows(rows) if isinstance(rows, int) else rows)
    defaults = {"model": "tiny-random", "engine": ENGINE, "device": "cpu", "progress": "none"}
    return JobConfig.model_validate({"data": (str(table),), "out": folder / "out", **defaults, **options})


def make_request(row_id: str, num_pieces: int = 1, attempts: int = 1, max_frames: int = 50) -> RowRequest:
    """A row of a built-in voice, as a worker gets it; seeds count from 100 for each piece."""
    pieces = [
        PieceRequest(
            request_id=row_id if num_pieces == 1 else piece_id(row_id, number),
            text="Some words.",
            max_frames=max_frames,
            expected_s=1.0,
            seeds=tuple(100 * (number + 1) + attempt for attempt in range(attempts)),
        )
        for number in range(num_pieces)
    ]
    return RowRequest(row_id, "custom_voice", tuple(pieces), SamplingParams(), "f", "i", speaker="vivian")


def make_active(request: RowRequest, *results: SpeechResult | None, attempt: int = 1) -> ActiveRow:
    """The row as a clip process gets it, with the results of an attempt, counted from 1, at each of its pieces."""
    row = ActiveRow(request, state="finishing")
    for piece, result in zip(row.pieces, results, strict=True):
        piece.num_attempts, piece.result = attempt, result
    return row


def read_manifest(out: Path) -> list[dict[str, Any]]:
    return pq.read_table(out / "manifest.parquet").to_pylist()


def snapshot(out: Path) -> dict[str, tuple[Any, ...]]:
    """Everything that two runs over the same table must agree on."""
    return {row["id"]: (*(row[key] for key in _COMPARED), _hash(out, row)) for row in read_manifest(out)}


_COMPARED = ("row_index", "status", "reason", "seed", "fingerprint", "audio", "num_frames", "duration_s")


def _hash(out: Path, row: Mapping[str, Any]) -> str | None:
    return hashlib.sha256((out / row["audio"]).read_bytes()).hexdigest() if row["audio"] else None


def journalled(out: Path) -> Counter[str]:
    """How many lines the journal holds for each id."""
    return Counter(outcome.id for segment in list_segments(out / "journal") for outcome in read_outcomes(segment))


def start_job(config: JobConfig, **fake: Any) -> subprocess.Popen[str]:
    """Run the job in a process of its own, as the command line does."""
    program = (
        "import sys; from tts_batch.config import JobConfig; from tts_batch.errors import TTSBatchError\n"
        "from tts_batch.run.job import run_job\n"
        "try: sys.exit(int(run_job(JobConfig.model_validate_json(sys.argv[1])).exit_status))\n"
        "except KeyboardInterrupt: sys.exit(130)\n"
        "except TTSBatchError as error: print(error); sys.exit(int(error.exit_status))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program, config.model_dump_json()],
        cwd=ROOT,
        env={**os.environ, "FAKE_ENGINE": json.dumps(fake)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def processes_of(out: Path) -> list[int]:
    """The processes that have a file of the run folder's journal open: its workers and theirs."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                files = [os.readlink(link) for link in (process / "fd").iterdir()]
            except OSError:
                continue
            files = [file for file in files if not file.endswith("(deleted)")]  # the parent's, of the planned rows
            if any(file.startswith(str(out.resolve() / "journal")) for file in files):
                found.append(int(process.name))
    return found


def kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
