"""Clips loaded side by side: each once, errors kept for who asks, no thread left."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from tests.engine.asking import hum
from tts_batch.engine.request import Reference
from tts_batch.engine.voices.load_ahead import MAX_THREADS, LoadAhead


def counted(key: str, calls: list[str], clip: np.ndarray | Exception) -> Reference:
    def load() -> np.ndarray:
        calls.append(key)
        if isinstance(clip, Exception):
            raise clip
        return clip

    return Reference(key=key, load=load)


def test_each_clip_is_loaded_once_and_handed_to_its_own_key() -> None:
    calls: list[str] = []
    clips = {f"voice{i}": hum(0.1, 100.0 + i) for i in range(3 * MAX_THREADS)}
    references = [counted(key, calls, clip) for key, clip in clips.items()]
    ahead = LoadAhead()
    ahead.start(references + references)
    for reference in reversed(references):
        assert ahead.take(reference) is clips[reference.key]
    assert sorted(calls) == sorted(clips)


def test_what_was_not_started_is_loaded_when_asked_for() -> None:
    calls: list[str] = []
    clip = hum(0.1)
    assert LoadAhead().take(counted("voice", calls, clip)) is clip
    assert calls == ["voice"]


def test_an_error_belongs_to_its_clip() -> None:
    calls: list[str] = []
    good, bad = counted("good", calls, hum(0.1)), counted("bad", calls, OSError("gone"))
    ahead = LoadAhead()
    ahead.start([bad, good])
    assert len(ahead.take(good)) == 2_400
    with pytest.raises(OSError, match="gone"):
        ahead.take(bad)


def test_clips_are_loaded_at_the_same_time_and_no_thread_stays() -> None:
    together = threading.Barrier(4, timeout=10)

    def load() -> np.ndarray:
        together.wait()  # passes only when four loads are under way
        return hum(0.1)

    references = [Reference(key=str(i), load=load) for i in range(4)]
    ahead = LoadAhead()
    ahead.start(references)
    for reference in references:
        ahead.take(reference)
    deadline_s = time.monotonic() + 10
    while any(thread.name == "tts-batch-load" for thread in threading.enumerate()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_a_clip_that_is_no_longer_wanted_is_dropped() -> None:
    calls: list[str] = []
    references = {key: counted(key, calls, hum(0.1)) for key in "abcd"}
    ahead = LoadAhead()
    ahead.start([references["a"], references["b"]])
    ahead.start([references["c"], references["d"]])
    for key in "abcd":
        ahead.take(references[key])
    assert [calls.count(key) for key in "cd"] == [1, 1]
    again = list(calls)
    ahead.take(references["a"])  # nothing of it is held
    assert calls == [*again, "a"]


def test_a_clip_whose_turn_did_not_come_is_loaded_by_who_needs_it() -> None:
    calls: list[str] = []
    release = threading.Event()

    def slow() -> np.ndarray:
        assert release.wait(10)
        return hum(0.1)

    stuck = [Reference(key=str(i), load=slow) for i in range(MAX_THREADS)]
    waiting = counted("waiting", calls, hum(0.2))
    ahead = LoadAhead()
    ahead.start([*stuck, waiting])
    assert len(ahead.take(waiting)) == 4_800
    release.set()
    for reference in stuck:
        ahead.take(reference)
    assert calls == ["waiting"]
