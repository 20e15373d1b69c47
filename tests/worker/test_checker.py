"""Clips are examined and encoded in other processes as they are here; such a process ends with who started it."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.run.support import wait_until
from tts_batch.engine.request import SAMPLE_RATE_HZ, SpeechResult
from tts_batch.worker import checker
from tts_batch.worker.checker import Answer, CheckerDiedError, Checkers, Question, Rules, answer
from tts_batch.worker.checks import CheckLimits
from tts_batch.worker.sound import Tail

TIMEOUT_S = 30.0
RULES = Rules(CheckLimits(), trim_margin_s=None, format="wav", save_codes=True)


def sound(seconds: float, seed: int) -> np.ndarray:
    """Some tones that come and go."""
    rng = np.random.default_rng(seed)
    at_s = np.arange(round(seconds * SAMPLE_RATE_HZ), dtype=np.float32)[:, None] / SAMPLE_RATE_HZ
    tones = np.sin(2 * np.pi * rng.uniform(100, 1_500, 12) * at_s) * np.sin(np.pi * rng.uniform(1, 3, 12) * at_s)
    return 0.05 * tones.sum(axis=1).astype(np.float32)


def question(audio: np.ndarray | None, **others: object) -> Question:
    codes = np.arange(25 * 16, dtype=np.int16).reshape(25, 16)
    result = SpeechResult("r", audio, SAMPLE_RATE_HZ, codes, 25, "stop", True, effective={"language": "english"})
    asked = Question(result, max_frames=100, expected_s=2.0, tail=None, is_whole=True)
    return replace(asked, **others)


QUIET = np.concatenate([np.zeros(12_000, np.float32), sound(2.0, 1), np.zeros(12_000, np.float32)])
QUESTIONS = {
    "good": question(sound(2.0, 2)),
    "a piece": question(sound(2.0, 2), is_whole=False),
    "with a reference": question(sound(2.0, 2), tail=Tail(sound(3.0, 3), SAMPLE_RATE_HZ)),
    "leaked": question(sound(2.0, 2), tail=Tail(sound(2.0, 2), SAMPLE_RATE_HZ)),
    "silence at its ends": question(QUIET),
    "no audio": question(None),
    "not finite": question(np.full(2_000, np.nan, np.float32)),
}


@pytest.fixture
def apart() -> Iterator[Checkers]:
    """Every question is for a process."""
    checkers = Checkers(RULES, num_threads=1)
    yield checkers
    checkers.close()


def pids(checkers: Checkers) -> list[int]:
    return [started._process.pid for started in checkers._started]


def assert_same(left: Answer, right: Answer) -> None:
    assert left.examined == right.examined
    np.testing.assert_array_equal(left.trimmed, right.trimmed)


@pytest.mark.parametrize("trim_margin_s", [None, 0.1])
def test_answers_are_the_same_here_and_there(trim_margin_s: float | None) -> None:
    rules = replace(RULES, trim_margin_s=trim_margin_s)
    here, there = Checkers(rules, num_threads=2), Checkers(rules, num_threads=1)
    answers = {name: here.ask(asked) for name, asked in QUESTIONS.items()}
    for name, asked in QUESTIONS.items():
        assert_same(there.ask(asked), answers[name])
    assert pids(here) == []
    assert len(pids(there)) == 1
    there.close()

    reasons = {name: found.examined.failure and found.examined.failure.reason for name, found in answers.items()}
    assert {name: reason for name, reason in reasons.items() if reason} == {
        "leaked": "ref_leak",
        "no audio": "empty_audio",
        "not finite": "non_finite",
    }
    encoded = {name for name, found in answers.items() if found.examined.files}
    assert encoded == {"good", "with a reference", "silence at its ends"}
    trimmed = answers["silence at its ends"].trimmed
    assert (trimmed is None) == (trim_margin_s is None)
    assert trimmed is None or trimmed.size < QUIET.size


def test_a_process_is_started_when_all_threads_ask_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checkers = Checkers(RULES, num_threads=2)
    has_begun, may_end = threading.Event(), threading.Event()

    def answer_slowly(asked: Question, rules: Rules) -> Answer:
        has_begun.set()
        assert may_end.wait(TIMEOUT_S)
        return answer(asked, rules)

    monkeypatch.setattr(checker, "answer", answer_slowly)
    first = threading.Thread(target=checkers.ask, args=[QUESTIONS["good"]])
    first.start()
    assert has_begun.wait(TIMEOUT_S)
    assert pids(checkers) == []
    assert_same(checkers.ask(QUESTIONS["good"]), answer(QUESTIONS["good"], RULES))
    assert len(pids(checkers)) == 1, "this thread's, for good"
    may_end.set()
    first.join(TIMEOUT_S)
    checkers.ask(QUESTIONS["good"])
    assert len(pids(checkers)) == 1
    checkers.close()
    assert [started._process.returncode for started in checkers._started] == [0]


def test_where_no_process_starts_threads_go_on(
    apart: Checkers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(checker.subprocess, "Popen", refuse)
    for _ in range(2):
        assert_same(apart.ask(QUESTIONS["good"]), answer(QUESTIONS["good"], RULES))
    assert pids(apart) == []
    assert len(caplog.messages) == 1, "it is not tried for every clip"
    assert caplog.messages[0].endswith("cannot be started: [Errno 11] Resource temporarily unavailable")


def test_a_process_has_one_thread(apart: Checkers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    apart.ask(QUESTIONS["good"])
    assert len(list(Path(f"/proc/{pids(apart)[0]}/task").iterdir())) == 1


def test_another_takes_what_a_process_had_that_was_killed(apart: Checkers) -> None:
    apart.ask(QUESTIONS["good"])
    os.kill(pids(apart)[0], signal.SIGKILL)
    for _ in range(2):
        assert_same(apart.ask(QUESTIONS["good"]), answer(QUESTIONS["good"], RULES))
    assert len(pids(apart)) == 2


class Deadly:
    """Ends the process that unpickles it."""

    def __reduce__(self) -> tuple[Callable[[int], object], tuple[int]]:
        return os._exit, (1,)


def test_what_ends_every_process_is_an_error(apart: Checkers) -> None:
    with pytest.raises(CheckerDiedError, match="a process that checks clips ended while it had that of 'r'"):
        apart.ask(replace(QUESTIONS["good"], tail=Deadly()))
    assert len(pids(apart)) == 2
    assert_same(apart.ask(QUESTIONS["good"]), answer(QUESTIONS["good"], RULES))


def test_it_ends_with_who_started_it(tmp_path: Path) -> None:
    program = """
import time
from tests.worker.test_checker import QUESTIONS, RULES, Checkers, pids
checkers = Checkers(RULES, num_threads=1)
checkers.ask(QUESTIONS["good"])
print(pids(checkers)[0], flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        starter.kill()

    def is_gone() -> bool:
        with suppress(ProcessLookupError, FileNotFoundError):
            return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
        return True

    wait_until(is_gone, TIMEOUT_S)
