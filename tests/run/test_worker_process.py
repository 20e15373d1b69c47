"""How a worker ended, in a sentence that says what to do."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tts_batch.engine.request import EngineConfig
from tts_batch.ipc.messages import ClipRules, Deadlines, EngineLabels, OpenEngine, SegmentNames
from tts_batch.run.devices import Device
from tts_batch.run.worker_process import WorkerProcess


def start_worker(folder: Path) -> WorkerProcess:
    worker = WorkerProcess(folder, "w0", Device("cpu"))
    worker.start(
        OpenEngine(
            out=folder,
            segments=SegmentNames(folder, "w0", 1, 1),
            engine="tests.fake_engine:create",
            engine_config=EngineConfig(model=""),
            rules=ClipRules(),
            labels=EngineLabels(),
            deadlines=Deadlines(60.0, 1.0),
            max_clip_processes=1,
        )
    )
    return worker


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGBUS, "died of SIGBUS (most often /dev/shm is too small"),
        (signal.SIGKILL, "died of SIGKILL (most often the machine ran out of memory)"),
        (signal.SIGSEGV, "died of SIGSEGV"),
    ],
)
def test_the_signal_that_ended_a_worker_is_explained(tmp_path: Path, number: signal.Signals, words: str) -> None:
    worker = start_worker(tmp_path)
    assert worker.process is not None
    os.kill(worker.process.pid, number)
    assert f"worker w0 {words}" in worker.reap()
    assert worker.died_of_signal
    assert worker.process is None


def test_what_the_parent_did_it_says_itself(tmp_path: Path) -> None:
    worker = start_worker(tmp_path)
    worker.kill("no row ended for 5 s")
    assert worker.reap().startswith("worker w0 was ended: no row ended for 5 s")
    assert not worker.died_of_signal
