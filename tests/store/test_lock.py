"""One live run per folder."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.run.support import wait_until
from tts_batch.errors import CannotContinueError, UsageError
from tts_batch.store import lock as lock_module
from tts_batch.store.lock import FolderInUseError, RunLock, is_live, live_locks


def write_lock(folder: Path, host: str, pid: int, age_s: float = 0.0, name: str = "run.lock") -> None:
    path = folder / name
    path.write_text(json.dumps({"host": host, "pid": pid, "token": "theirs"}))
    then = time.time() - age_s
    os.utime(path, (then, then))


def is_lost(lock: RunLock) -> bool:
    try:
        lock.check()
    except CannotContinueError:
        return True
    return False


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_it_is_there_while_it_is_held_and_gone_after(tmp_path: Path) -> None:
    with RunLock(tmp_path) as lock:
        assert is_live(lock.path)
        assert json.loads(lock.path.read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []
    assert not is_live(lock.path)


def test_a_second_run_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with RunLock(tmp_path), pytest.raises(UsageError, match="Another run works in"), RunLock(tmp_path):
        pass
    write_lock(tmp_path, socket.gethostname(), os.getppid())
    with pytest.raises(UsageError, match=f"process {os.getppid()}"), RunLock(tmp_path):
        pass
    write_lock(tmp_path, "elsewhere", 1, age_s=30)
    with pytest.raises(UsageError, match="host elsewhere"), RunLock(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["run.lock"]


@pytest.mark.parametrize(("host", "age_s"), [("here", 0.0), ("elsewhere", 61.0)])
def test_a_dead_runs_lock_is_taken(tmp_path: Path, host: str, age_s: float) -> None:
    write_lock(tmp_path, socket.gethostname() if host == "here" else host, dead_pid(), age_s)
    with RunLock(tmp_path) as lock:
        assert json.loads(lock.path.read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("name", ["run.lock", "shard-1-of-2-run.lock"])
def test_our_own_pid_in_a_left_lock_is_a_restarted_containers(tmp_path: Path, name: str) -> None:
    write_lock(tmp_path, socket.gethostname(), os.getpid(), name=name)
    assert live_locks(tmp_path) == []
    with RunLock(tmp_path):
        pass


@pytest.mark.parametrize("name", ["run.lock", "shard-1-of-2-run.lock"])
def test_a_lock_that_does_not_beat_is_dead_though_its_pid_is_in_use_again(tmp_path: Path, name: str) -> None:
    write_lock(tmp_path, socket.gethostname(), os.getppid(), age_s=61, name=name)
    assert live_locks(tmp_path) == []
    with RunLock(tmp_path):
        pass
    write_lock(tmp_path, socket.gethostname(), os.getppid(), age_s=30, name=name)
    assert live_locks(tmp_path) == [tmp_path / name]
    with pytest.raises(UsageError, match="Another run works in"), RunLock(tmp_path):
        pass


def test_the_heart_outlives_a_file_system_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    utime, away = os.utime, [OSError("stale file handle")]

    def sometimes(path: Path) -> None:
        if away:
            raise away.pop()
        utime(path)

    monkeypatch.setattr(lock_module, "HEARTBEAT_S", 0.05)
    with RunLock(tmp_path) as lock:
        utime(lock.path, (0, 0))
        monkeypatch.setattr(lock_module.os, "utime", sometimes)
        wait_until(lambda: lock.path.stat().st_mtime > 0)
        lock.check()
    assert not away


def test_a_torn_lock_is_taken_when_it_is_old(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    path.write_text('{"ho')
    with pytest.raises(UsageError), RunLock(tmp_path):
        pass
    os.utime(path, (0, 0))
    with RunLock(tmp_path):
        pass


def test_the_heart_beats_and_notices_a_thief(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "HEARTBEAT_S", 0.05)
    with RunLock(tmp_path) as lock:
        os.utime(lock.path, (0, 0))
        wait_until(lambda: lock.path.stat().st_mtime > time.time() - 10)
        lock.check()
        write_lock(tmp_path, "elsewhere", 1)
        wait_until(lambda: is_lost(lock))
        with pytest.raises(CannotContinueError, match="taken over"):
            lock.check()
    assert lock.path.exists()  # it is the other's now


def test_a_lock_that_was_renewed_while_its_age_was_measured_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lock(tmp_path, "elsewhere", 1, age_s=61)
    measure = lock_module.lock_age_s

    def renew_and_measure(path: Path) -> float:
        age_s = measure(path)
        path.write_text(json.dumps({"host": "a third", "pid": 1, "token": "fresh"}))
        return age_s

    monkeypatch.setattr(lock_module, "lock_age_s", renew_and_measure)
    with pytest.raises(UsageError, match="host a third"), RunLock(tmp_path):
        pass
    assert json.loads((tmp_path / "run.lock").read_text())["token"] == "fresh"
    assert [path.name for path in tmp_path.iterdir()] == ["run.lock"]


def test_a_stale_lock_is_left_to_the_run_that_is_replacing_it(tmp_path: Path) -> None:
    write_lock(tmp_path, "elsewhere", 1, age_s=61)
    write_lock(tmp_path, socket.gethostname(), os.getppid(), name="run.lock.theirs")
    with pytest.raises(UsageError, match=f"process {os.getppid()}"), RunLock(tmp_path):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.lock", "run.lock.theirs"]


@pytest.mark.parametrize(("host", "age_s"), [("here", 0.0), ("elsewhere", 61.0)])
def test_a_run_that_died_replacing_a_stale_lock_is_replaced_too(tmp_path: Path, host: str, age_s: float) -> None:
    write_lock(tmp_path, "elsewhere", 1, age_s=61)
    host = socket.gethostname() if host == "here" else host
    write_lock(tmp_path, host, dead_pid(), age_s, name="run.lock.theirs")
    with RunLock(tmp_path) as lock:
        assert [path.name for path in tmp_path.iterdir()] == ["run.lock"]
        assert json.loads(lock.path.read_text())["pid"] == os.getpid()


def test_no_hard_link_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "link", refuse)
    with RunLock(tmp_path), pytest.raises(UsageError, match="Another run works in"), RunLock(tmp_path):
        pass
    write_lock(tmp_path, "elsewhere", 1, age_s=61)
    with RunLock(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(lock_module.json, "dump", refuse)
        with pytest.raises(OSError, match="No space left"), RunLock(tmp_path):
            pass
    assert list(tmp_path.iterdir()) == []
    with RunLock(tmp_path):
        pass


@pytest.mark.parametrize("lock", ["none", "stale", "torn", "successor"])
def test_threads_that_race_hold_it_one_at_a_time(tmp_path: Path, lock: str) -> None:
    holders = threading.Semaphore(1)
    overlaps: list[int] = []

    def race(number: int) -> bool:
        barrier.wait()
        try:
            with RunLock(folder):
                if not holders.acquire(blocking=False):
                    overlaps.append(number)
                    return True
                barrier_of_winner.wait(0.05)
                holders.release()
                return True
        except FolderInUseError:
            return False

    barrier_of_winner = threading.Event()  # never set: the winner holds the lock while the others try
    with ThreadPoolExecutor(8) as threads:
        for attempt in range(15):
            barrier, folder = threading.Barrier(8), tmp_path / str(attempt)
            folder.mkdir()
            if lock != "none":
                write_lock(folder, "elsewhere", 1, age_s=61)
            if lock == "torn":
                (folder / "run.lock").write_text("")
                os.utime(folder / "run.lock", (0, 0))
            if lock == "successor":
                write_lock(folder, "elsewhere", 1, age_s=61, name="run.lock.theirs")
            assert sum(threads.map(race, range(8))) >= 1
            assert list(folder.iterdir()) == []
    assert not overlaps


def test_one_of_many_gets_a_stale_lock(tmp_path: Path) -> None:
    write_lock(tmp_path, socket.gethostname(), dead_pid())
    program = (
        "import sys; from pathlib import Path; from tts_batch.store.lock import RunLock\n"
        "with RunLock(Path(sys.argv[1])): print('mine', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    pipe = subprocess.PIPE
    racers = [
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) for _ in range(4)
    ]
    wait_until(lambda: sum(racer.poll() is not None for racer in racers) == 3)  # the winner waits for the end of stdin
    answers = [racer.communicate(timeout=30)[0] for racer in racers]
    assert answers.count("mine\n") == 1


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in ("file", "file/out"):
        with (
            pytest.raises(UsageError, match=r"cannot be written to: (File exists|Not a directory)"),
            RunLock(tmp_path / folder),
        ):
            pass
