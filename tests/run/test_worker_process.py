"""How a worker ended, in words that say what to do."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tts_batch.run.slot import Slot

from tts_batch.run.devices import Device


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (signal.SIGBUS, "died of SIGBUS (most often /dev/shm is too small"),
        (signal.SIGKILL, "died of SIGKILL (most often the machine ran out of memory)"),
        (signal.SIGSEGV, "died of SIGSEGV"),
    ],
)
def test_the_signal_that_ended_a_worker_is_explained(tmp_path: Path, number: signal.Signals, words: str) -> None:
    slot = Slot(tmp_path, "w0", Device("cpu"))
    slot.start(tmp_path / "segment", {})
    assert slot.process is not None
    os.kill(slot.process.pid, number)
    assert f"worker w0 {words}" in slot.reap()
    assert slot.died_of_signal
    assert slot.process is None


def test_what_the_parent_did_it_says_itself(tmp_path: Path) -> None:
    slot = Slot(tmp_path, "w0", Device("cpu"))
    slot.start(tmp_path / "segment", {})
    slot.kill("no row ended for 5 s")
    assert slot.reap().startswith("worker w0 was ended: no row ended for 5 s")
    assert not slot.died_of_signal
