"""Whoever is killed, in whatever order: nothing of vLLM is left on the GPU. Real signals to real processes."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.vllm.processes import started, wait_until_gone
from tts_batch.model.tiny import build_tiny

PROGRAM = """
import sys, time
from tests.engine.asking import ask
from tts_batch.engine.registry import open_engine
from tts_batch.engine.request import EngineConfig

engine = open_engine("vllm", EngineConfig(model=sys.argv[1], device="cuda"))
engine.add_request(ask(text="hang on."))
engine.step(0.2)
print("open", flush=True)
while True:
    engine.step(1.0)
"""


@pytest.fixture
def program(vllm_site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A program with an open engine and a request in it; its temporary folder is tmp_path/scratch."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    command = [sys.executable, "-c", PROGRAM, str(build_tiny("tiny-random", "custom_voice"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 60.0)[0], "the engine did not open"
        assert process.stdout.readline() == b"open\n"
        assert len(started(vllm_site)) == 3
        assert any((tmp_path / "scratch").iterdir())
        yield process
        process.kill()


@pytest.mark.parametrize("how", ["program", "program and host", "host"])
def test_the_stages_end_with_the_program_and_with_the_host(
    program: subprocess.Popen[bytes], vllm_site: Path, tmp_path: Path, how: str
) -> None:
    host, *_ = started(vllm_site)
    for victim in {"program": [program.pid], "program and host": [program.pid, host], "host": [host]}[how]:
        os.kill(victim, signal.SIGKILL)
    wait_until_gone(vllm_site)
    assert program.wait(30.0) == (1 if how == "host" else -signal.SIGKILL)
    deadline_s = time.monotonic() + 30.0
    while list((tmp_path / "scratch").glob("tts-batch-vllm-*")):
        assert time.monotonic() < deadline_s, "the temporary folder is left"
        time.sleep(0.02)


def test_a_program_that_ends_without_closing_leaves_nothing(vllm_site: Path) -> None:
    code = PROGRAM.partition("print(")[0]  # it ends with the engine open
    model = str(build_tiny("tiny-random", "custom_voice"))
    done = subprocess.run([sys.executable, "-c", code, model], capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    wait_until_gone(vllm_site)
