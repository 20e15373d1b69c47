"""Clip processes, as real ones: what they have is finished once, whatever ends them."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.run.support import make_active, make_request
from tts_batch.dataset.audio import load_reference
from tts_batch.engine.request import Reference, SpeechResult
from tts_batch.ipc.messages import ActiveRow, ClipRules, EngineLabels, RetryPieces, SegmentNames
from tts_batch.records import Failure, RefAudio
from tts_batch.store.clip_sink import LocalClipSink
from tts_batch.store.clips import clip_path
from tts_batch.store.journal import Outcome, list_segments, read_outcomes
from tts_batch.worker import clip_pool
from tts_batch.worker.clip_pool import ClipPool, ClipProcessError


def make_clip(row_id: str, finish_reason: str = "stop", reference: Reference | None = None) -> ActiveRow:
    tone = (0.3 * np.sin(np.arange(24_000) / 10)).astype(np.float32)
    result = SpeechResult(row_id, tone, 24_000, None, 12, finish_reason, finish_reason == "stop")
    return make_active(replace(make_request(row_id, attempts=2), reference=reference), result)


def voice(key: str) -> Reference:
    return Reference(key, partial(load_reference, RefAudio(path="/none.wav", label="none.wav")))


class Poison(dict[str, str]):
    """Ends the process that it is sent to."""

    def __reduce__(self) -> tuple[Callable[[int], object], tuple[int]]:
        return os._exit, (1,)


def poison_clip(row_id: str) -> ActiveRow:
    clip = make_clip(row_id)
    clip.pieces[0].result = replace(clip.results[0], effective=Poison())
    return clip


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
        self.ended: list[tuple[str, float | None]] = []  # id, and seconds of audio

    def take_answers(self, timeout_s: float = 0.5) -> None:
        with selectors.DefaultSelector() as selector:
            for process in self.clips.processes:
                selector.register(process.channel, selectors.EVENT_READ, process)
            for key, _ in selector.select(timeout_s):
                for answer in self.clips.receive(key.data):
                    if isinstance(answer, RetryPieces):
                        self.retries.append(answer)
                    else:
                        self.ended.extend(answer.ended.items())

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
    assert dict(pool.ended) == {"a": 1.0, "b": 1.0}
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
    assert Counter(row_id for row_id, _ in pool.ended) == Counter(names)
    assert Counter(line.id for line in pool.lines) == Counter(names)
    assert len(list_segments(pool.out / "journal")) == 2


@pytest.mark.parametrize("neighbours", [(), ("a", "b", "c", "d")])
def test_a_clip_that_ends_every_process_fails_and_the_others_do_not(pool: Pool, neighbours: tuple[str, ...]) -> None:
    for name in neighbours[:2]:
        pool.clips.put(make_clip(name))
    pool.clips.put(poison_clip("poison"))
    for name in neighbours[2:]:
        pool.clips.put(make_clip(name))
    pool.finish()
    assert Counter(row_id for row_id, _ in pool.ended) == Counter([*neighbours, "poison"])
    assert dict(pool.ended) == dict.fromkeys(neighbours, 1.0) | {"poison": None}
    assert Counter(line.id for line in pool.lines) == Counter([*neighbours, "poison"])
    (line,) = (line for line in pool.lines if line.id == "poison")
    message = "3 clip processes ended while they had this clip and no other."
    assert (line.reason, line.message, line.attempts) == ("worker_crash", message, 1)
    deaths = len(list_segments(pool.out / "journal")) - 1
    assert deaths == (4 if neighbours else 3), "the first with others does not count"


def test_a_clip_under_suspicion_stays_alone_while_others_come(pool: Pool) -> None:
    pool.clips.put(poison_clip("poison"))
    first, names = pool.clips.processes[0], list[str]()

    def put_another() -> bool:
        if pool.clips.processes[0] is not first and not pool.ended and len(names) < 20:
            names.append(f"r{len(names)}")
            pool.clips.put(make_clip(names[-1]))
        return bool(pool.ended)

    pool.wait_until(put_another)
    pool.finish()
    assert dict(pool.ended) == dict.fromkeys(names, 1.0) | {"poison": None}
    assert len(pool.ended) == len(names) + 1 > 1
    assert len(list_segments(pool.out / "journal")) == 4


def test_two_clips_that_end_every_process_fail_each(pool: Pool) -> None:
    for name in ("poison1", "a", "poison2", "b"):
        pool.clips.put(poison_clip(name) if name.startswith("poison") else make_clip(name))
    pool.finish()
    assert dict(pool.ended) == {"poison1": None, "poison2": None, "a": 1.0, "b": 1.0}
    assert len(pool.ended) == len(pool.lines) == 4


def test_rows_that_a_dead_process_had_recorded_count_once(tmp_path: Path, fake: Callable[..., None]) -> None:
    """It dies between the journal's lines and the message about them."""
    fake(mute_clip=str(tmp_path / "it-died"))
    pool = Pool(tmp_path)
    for name in ("a", "b", "c"):
        pool.clips.put(make_clip(name))
    pool.finish()
    assert (tmp_path / "it-died").exists()
    assert Counter(row_id for row_id, _ in pool.ended) == Counter(line.id for line in pool.lines) == Counter("abc")
    assert [audio_s for _, audio_s in pool.ended] == [1.0] * 3
    pool.close()


def test_processes_that_cannot_start_are_an_error(tmp_path: Path, fake: Callable[..., None]) -> None:
    fake(clip_exit=3)
    pool = Pool(tmp_path)
    pool.clips.put(make_clip("a"))
    with pytest.raises(ClipProcessError, match=r"\d+ clip processes ended one after another, .* status 3") as caught:
        pool.wait_until(lambda: pool.clips.is_idle)
    assert not caught.value.disk_full
    pool.close()


def test_a_process_that_cannot_be_started_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(ClipProcessError, match=r"cannot be started: .* No such file"):
        ClipPool(tmp_path, SegmentNames(tmp_path / "journal", "w0", 1, 1), 1, inherited=2)


def test_numpy_has_one_thread_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    pool = Pool(tmp_path)
    pool.clips.put(make_clip("a"))
    pool.finish()
    threads = Path(f"/proc/{pool.clips.processes[0].process.pid}/task").iterdir()
    names = Counter((thread / "comm").read_text().strip() for thread in threads)
    assert names.total() <= 1 + 1 + 1 + LocalClipSink.threads, names  # its main thread and the writer's
    pool.close()


def test_a_row_that_has_failed_is_recorded(pool: Pool) -> None:
    failure = Failure("stalled", "The engine returned no result.")
    row = make_clip("a")
    row.fail(failure)
    pool.clips.put(row)
    pool.finish()
    assert pool.ended == [("a", None)]
    assert [(line.reason, line.message) for line in pool.lines] == [("stalled", failure.message)]


def test_what_is_under_way_is_recorded_when_it_is_closed(tmp_path: Path) -> None:
    pool = Pool(tmp_path)
    names = [f"r{number}" for number in range(20)]
    for name in names:
        pool.clips.put(make_clip(name))
    pool.close()
    assert Counter(line.id for line in pool.lines) == Counter(names)
    assert all((tmp_path / clip_path(name)).exists() for name in names)


def test_further_processes_are_started_as_clips_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clip_pool, "ROWS_PER_START", 8)
    pool = Pool(tmp_path, max_processes=3)
    numbers = []
    for number in range(32):
        pool.clips.put(make_clip(f"r{number}"))
        numbers.append(len(pool.clips.processes))
    assert numbers == [1] * 7 + [2] * 8 + [3] * 17
    pool.finish()
    assert len(pool.ended) == 32
    pool.close()


def test_a_voice_keeps_to_one_process_unless_another_has_far_less_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So each recording is read and prepared once."""
    monkeypatch.setattr(clip_pool, "ROWS_PER_START", 1)
    pool = Pool(tmp_path, max_processes=3)
    for number in range(3):
        pool.clips.put(make_clip(f"without{number}"))
    assert len(pool.clips.processes) == 3
    for number in range(6):
        for other in range(number % 3):  # so that another process has less to do
            pool.clips.put(make_clip(f"other{number}-{other}"))
        for name in ("x", "y"):
            pool.clips.put(make_clip(f"{name}{number}", reference=voice(name)))
        pool.finish()
    segments = [{line.id[0] for line in read_outcomes(path)} for path in list_segments(tmp_path / "journal")]
    for name in ("x", "y"):
        assert sum(name in voices for voices in segments) == 1
    for number in range(3 * clip_pool.MAX_BACKLOG):
        pool.clips.put(make_clip(f"again{number}", reference=voice("x")))
    most, *_, least = sorted((len(process.sent) for process in pool.clips.processes), reverse=True)
    assert 0 < least <= most <= least + clip_pool.MAX_BACKLOG + 1
    pool.finish()
    pool.close()


def test_it_is_full_while_too_much_is_not_recorded(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clip_pool, "MAX_ROWS", 3)
    for name in ("a", "b"):
        pool.clips.put(make_clip(name))
    assert not pool.clips.is_full
    pool.clips.put(make_clip("c"))
    assert pool.clips.is_full
    pool.finish()
    assert not pool.clips.is_full
    monkeypatch.setattr(clip_pool, "MAX_BYTES", 100)
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
