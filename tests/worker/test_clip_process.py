"""A clip process, as its worker sees it: tasks in, answers out, and what is on the disk at each."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.run.support import make_active, make_request, wait_until
from tts_batch.dataset.audio import load_reference
from tts_batch.engine.request import Reference, SpeechResult
from tts_batch.ipc.messages import (
    ActiveRow,
    ClipRules,
    CloseWriter,
    CommitNow,
    EngineLabels,
    FromClipProcess,
    OpenWriter,
    RetryPieces,
    RowsRecorded,
    ToClipProcess,
    WorkerFailed,
)
from tts_batch.ipc.transport import Channel
from tts_batch.records import RefAudio
from tts_batch.store.clips import clip_path, quarantine_path
from tts_batch.store.journal import Outcome, read_outcomes

RATE_HZ = 24_000
TONE = (0.3 * np.sin(np.arange(RATE_HZ) / 10)).astype(np.float32)


class Process:
    """The program, and this end of its channel."""

    def __init__(self, out: Path) -> None:
        self.out, self.segment = out, out / "journal" / "w0" / "00001-001-1.jsonl"
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "tts_batch.worker.clip_process", str(theirs.fileno())]
        with theirs:
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        self.channel: Channel[Any, FromClipProcess] = Channel(ours, (RetryPieces, RowsRecorded, WorkerFailed))

    def open(self, rules: ClipRules | None = None) -> None:
        self.send(OpenWriter(self.out, self.segment, rules or ClipRules(), EngineLabels(engine="some")))

    def send(self, *messages: ToClipProcess) -> None:
        for message in messages:
            self.channel.send(message)

    def receive(self) -> FromClipProcess:
        message = self.channel.receive()
        assert message is not None, "it has ended"
        return message

    def recorded(self, *names: str) -> None:
        """Wait until these rows are reported; nothing else comes before."""
        left = set(names)
        while left:
            message = self.receive()
            assert isinstance(message, RowsRecorded)
            left -= message.ended.keys()

    @property
    def lines(self) -> dict[str, Outcome]:
        return {outcome.id: outcome for outcome in read_outcomes(self.segment)}

    def end(self) -> None:
        self.channel.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    started = Process(tmp_path)
    yield started
    started.end()


def clip(row_id: str, audio: np.ndarray = TONE, **columns: Any) -> ActiveRow:
    result = SpeechResult(row_id, audio, RATE_HZ, np.ones((12, 16), np.int64), 12, "stop", True)
    return make_active(replace(make_request(row_id, attempts=2), **columns), result)


def voice(key: str, path: Path) -> Reference:
    return Reference(key, partial(load_reference, RefAudio(path=str(path), label=path.name)), "Words.")


def test_answers_come_when_all_is_on_the_disk(process: Process) -> None:
    process.open(ClipRules(save_codes=True))
    process.send(clip("a"), clip("b"), CommitNow())
    left = {"a", "b"}
    while left:
        message = process.receive()
        assert isinstance(message, RowsRecorded)
        for row_id, audio_s in message.ended.items():
            left.remove(row_id)
            assert audio_s == 1.0
            line = process.lines[row_id]
            assert (line.status, line.engine) == ("ok", "some")
            audio, _ = soundfile.read(process.out / clip_path(row_id), dtype="float32")
            assert audio == pytest.approx(TONE, abs=1e-4)
            assert np.load(process.out / clip_path(row_id, ".npy")).shape == (12, 16)


def test_a_failed_attempt_is_answered_at_once_and_recorded_nowhere(process: Process) -> None:
    process.open(ClipRules(keep_failed_audio=True))
    process.send(clip("a", np.zeros_like(TONE)))
    retry = process.receive()
    assert isinstance(retry, RetryPieces)
    assert (retry.row_id, retry.pieces) == ("a", (0,))
    assert [record["reason"] for record in retry.failed_attempts] == ["silent_output"]
    process.send(clip("b"), CommitNow())
    process.recorded("b")
    assert set(process.lines) == {"b"}
    kept, _ = soundfile.read(process.out / quarantine_path("a", 1))
    assert not kept.any()


def test_nothing_waits_longer_than_a_second_for_others(process: Process) -> None:
    process.open()
    process.send(clip("a"))
    process.recorded("a")


def test_it_closes_when_all_is_recorded(process: Process) -> None:
    process.open()
    names = [f"r{number}" for number in range(40)]
    process.send(*map(clip, names), CloseWriter())
    process.recorded(*names)
    assert process.channel.receive() is None
    assert process.process.wait(30) == 0
    assert set(process.lines) == set(names)
    assert not list(process.segment.parent.glob("tmp/*")), "temporary files are left"


def test_it_ends_with_its_worker_and_records_nothing_more(tmp_path: Path, fake: Callable[..., None]) -> None:
    fake(fsync_s=1.0)
    process = Process(tmp_path)
    process.open()
    process.send(*(clip(f"r{number}") for number in range(40)))
    wait_until(lambda: any(process.segment.parent.glob("tmp/*/*")))
    process.channel.close()
    assert process.process.wait(30) != 0
    assert not process.lines
    assert not list(tmp_path.glob("??/*")), "no file has a final name without a line"


def test_an_exception_fails_its_row_and_no_other(process: Process) -> None:
    process.open()
    broken = clip("a")
    broken.pieces[0].result = replace(broken.results[0], effective=None)  # type: ignore[arg-type]
    process.send(broken, clip("b"), CommitNow())
    process.recorded("a", "b")
    assert (process.lines["a"].status, process.lines["a"].reason) == ("failed", "worker_crash")
    assert process.lines["a"].message.startswith("Finishing its clip raised AttributeError")  # type: ignore[union-attr]
    assert process.lines["b"].status == "ok"


def test_signals_are_left_to_the_worker(process: Process) -> None:
    process.open()
    process.send(clip("a"), CommitNow())
    process.recorded("a")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        os.kill(process.process.pid, number)
    process.send(clip("b"), CommitNow())
    process.recorded("b")


def test_a_clip_that_begins_with_its_reference_fails(process: Process, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    recording = (0.2 * np.convolve(rng.standard_normal(3 * RATE_HZ), np.ones(8) / 8, "same")).astype(np.float32)
    soundfile.write(tmp_path / "voice.wav", recording, RATE_HZ, subtype="FLOAT")
    file = voice("key", tmp_path / "voice.wav")
    missing = voice("other", tmp_path / "none.wav")
    leaked = np.concatenate([recording, TONE])
    limits = replace(ClipRules().limits, too_long_factor=None)
    process.open(ClipRules(limits=limits))
    process.send(clip("a", leaked, reference=file))
    retry = process.receive()
    assert isinstance(retry, RetryPieces)
    assert [record["reason"] for record in retry.failed_attempts] == ["ref_leak"]
    process.send(
        clip("b", TONE, reference=file),
        clip("c", leaked, reference=file, x_vector_only=True),  # its words are not in the prompt
        clip("d", leaked, reference=missing),
        CommitNow(),
    )
    process.recorded("b", "c", "d")
    assert process.lines["b"].checks["ref_correlation"] < 0.5
    assert "ref_correlation" not in process.lines["c"].checks
    assert "ref_correlation" not in process.lines["d"].checks


def test_a_segment_that_exists_is_an_error(process: Process) -> None:
    process.segment.parent.mkdir(parents=True)
    process.segment.write_text("of another\n")
    process.open()
    message = process.receive()
    assert isinstance(message, WorkerFailed)
    assert message.error.startswith("FileExistsError: ")
    assert not message.disk_full
    assert process.process.wait(30) != 0
    assert process.segment.read_text() == "of another\n"


def test_a_worker_that_is_gone_before_it_says_anything_ends_it(process: Process) -> None:
    process.channel.close()
    assert process.process.wait(30) == 0


def test_it_never_loads_torch() -> None:
    """In a process of its own: others in this one may."""
    program = "import sys, tts_batch.worker.clip_process; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
