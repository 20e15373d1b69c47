"""Clip processes, as real ones: what they have is finished once, whatever ends them."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.run.support import make_task
from tts_batch.engine.request import SpeechResult
from tts_batch.ipc.messages import (
    ClipRules,
    ClipTask,
    EngineLabels,
    PieceResult,
    ReferenceFile,
    RetryPieces,
    RowEnd,
    SegmentNames,
)
from tts_batch.store.clips import clip_path
from tts_batch.store.journal import Outcome, list_segments, read_outcomes
from tts_batch.worker import clip_pool
from tts_batch.worker.clip_pool import ClipPool, ClipProcessError

Answers = Counter[str]


def make_clip(row_id: str, finish_reason: str = "stop", reference: ReferenceFile | None = None) -> ClipTask:
    task = replace(make_task(row_id, attempts=2), reference=reference)
    tone = (0.3 * np.sin(np.arange(24_000) / 10)).astype(np.float32)
    result = SpeechResult(row_id, tone, 24_000, None, 12, finish_reason, finish_reason == "stop")
    return ClipTask(task, (PieceResult(0, 1, 100, False, result),), num_attempts=1)


class Pool:
    """A ClipPool, and what it has answered."""

    def __init__(self, out: Path, max_processes: int = 1) -> None:
        self.out = out
        self._kept_open, other = socket.socketpair()
        other.close()
        names = SegmentNames(out / "journal", "w0", 1, 1)
        self.clips = ClipPool(out, names, max_processes, self._kept_open.fileno())
        self.clips.open(ClipRules(), EngineLabels(model="some", runner="v2"))
        self.retries: list[RetryPieces] = []
        self.ended: list[RowEnd] = []

    def take_answers(self, timeout_s: float = 0.5) -> None:
        with selectors.DefaultSelector() as selector:
            for process in self.clips.processes:
                selector.register(process.channel, selectors.EVENT_READ, process)
            for key, _ in selector.select(timeout_s):
                for answer in self.clips.receive(key.data):
                    if isinstance(answer, RetryPieces):
                        self.retries.append(answer)
                    else:
                        self.ended.append(answer)

    def wait_until(self, holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline_s, "it did not come true in time"
            self.take_answers()

    def finish(self) -> None:
        self.clips.commit_now()
        self.wait_until(lambda: self.clips.is_idle)

    def kill(self) -> None:
        os.kill(self.clips.processes[0].process.pid, signal.SIGKILL)

    @property
    def lines(self) -> list[Outcome]:
        return [outcome for segment in list_segments(self.out / "journal") for outcome in read_outcomes(segment)]

    def close(self) -> None:
        self.clips.close()
        self._kept_open.close()


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    opened = Pool(tmp_path)
    yield opened
    opened.close()


def test_clips_are_written_and_recorded(pool: Pool) -> None:
    for name in ("a", "b"):
        pool.clips.put(make_clip(name))
    pool.clips.put(make_clip("again", "length"))
    pool.finish()
    assert {row.id: row.status for row in pool.ended} == {"a": "ok", "b": "ok"}
    assert [row.audio_s for row in pool.ended] == [1.0, 1.0]
    assert [(retry.row_id, retry.pieces) for retry in pool.retries] == [("again", (0,))]
    assert {line.id: (line.model, line.runner) for line in pool.lines} == {"a": ("some", "v2"), "b": ("some", "v2")}
    assert (pool.out / clip_path("a")).stat().st_size == 44 + 2 * 24_000


def test_a_killed_process_loses_nothing_and_nothing_is_recorded_twice(pool: Pool) -> None:
    names = [f"r{number}" for number in range(60)]
    for name in names[:30]:
        pool.clips.put(make_clip(name))
    pool.wait_until(lambda: bool(pool.lines) or bool(pool.ended))
    pool.kill()
    for name in names[30:]:
        pool.clips.put(make_clip(name))
    pool.finish()
    assert Counter(row.id for row in pool.ended) == Counter(names)
    assert Counter(line.id for line in pool.lines) == Counter(names)
    assert len(list_segments(pool.out / "journal")) == 2


def test_a_clip_that_ends_every_process_fails_and_the_others_do_not(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clip_pool, "DEATHS_ALONE", 2)
    pool.finish()
    sent: list[int] = []
    send = pool.clips.processes[0].channel.__class__.send

    def kill_at_poison(channel: object, message: object) -> None:
        send(channel, message)  # type: ignore[arg-type]
        if isinstance(message, ClipTask) and message.row.id == "poison" and message.failure is None:
            sent.append(1)
            process = next(process for process in pool.clips.processes if process.channel is channel)
            os.kill(process.process.pid, signal.SIGKILL)

    monkeypatch.setattr(pool.clips.processes[0].channel.__class__, "send", kill_at_poison)
    for name in ("a", "poison", "b"):
        pool.clips.put(make_clip(name))
    pool.finish()
    status = {row.id: row.status for row in pool.ended}
    assert status == {"a": "ok", "b": "ok", "poison": "failed"}
    (line,) = (line for line in pool.lines if line.id == "poison")
    assert line.reason == "worker_crash"
    assert len(sent) >= 2


def test_further_processes_are_started_as_clips_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clip_pool, "TASKS_PER_START", 8)
    pool = Pool(tmp_path, max_processes=3)
    voices = [ReferenceFile(f"voice{number}", "/none.wav", "path", "none.wav", None) for number in range(3)]
    numbers = []
    for number in range(32):
        pool.clips.put(make_clip(f"r{number}", reference=voices[number % 3]))
        numbers.append(len(pool.clips.processes))
    pool.finish()
    assert (numbers[0], numbers[-1], numbers) == (1, 3, sorted(numbers))
    assert len(pool.ended) == 32
    pool.close()


def test_it_is_full_while_too_much_is_not_recorded(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clip_pool, "MAX_TASKS", 3)
    for name in ("a", "b"):
        pool.clips.put(make_clip(name))
    assert not pool.clips.is_full
    pool.clips.put(make_clip("c"))
    assert pool.clips.is_full
    pool.finish()
    assert not pool.clips.is_full
    monkeypatch.setattr(clip_pool, "MAX_TASK_BYTES", 100)
    pool.clips.put(make_clip("d"))
    assert pool.clips.is_full
    pool.finish()
    assert not pool.clips.is_full


@pytest.mark.parametrize("full_after", [0, 4])  # the segment, or the clip, has no space
def test_a_full_disk_is_reported(tmp_path: Path, fake: Callable[..., None], full_after: int) -> None:
    fake(full_after=full_after)
    pool = Pool(tmp_path)
    pool.clips.put(make_clip("a"))
    pool.clips.commit_now()
    with pytest.raises(ClipProcessError, match=r"The disk of .* is full") as caught:
        pool.wait_until(lambda: pool.clips.is_idle)
    assert caught.value.disk_full
    pool.close()


def test_processes_end_with_the_worker_that_started_them(pool: Pool) -> None:
    process = pool.clips.processes[0]
    pool.clips.put(make_clip("a"))
    pool.finish()
    process.channel.close()
    assert process.process.wait(30) != 0
    pool.clips.processes.clear()
