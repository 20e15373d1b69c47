"""One live run for each URL: a lock in an object store."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.run.support import wait_until
from tts_batch.errors import CannotContinueError, UsageError
from tts_batch.object_store import ObjectStore
from tts_batch.plan.shards import Shard
from tts_batch.store import lock as lock_module
from tts_batch.store.lock import FolderInUseError, ObjectLock


def lock(s3: Any, folder: Path, shard: Shard | None = None) -> ObjectLock:
    return ObjectLock(ObjectStore(f"{s3.url}/run"), folder, shard)


def write_lock(s3: Any, host: str, pid: int, token: str = "theirs") -> None:
    s3.files.pipe_file(f"{s3.url}/run/run.lock", json.dumps({"host": host, "pid": pid, "token": token}).encode())


def names(s3: Any) -> list[str]:
    return sorted(path.rpartition("/")[2] for path in s3.files.find(f"{s3.url}/run"))


def test_it_is_there_while_it_is_held_and_gone_after(s3: Any, tmp_path: Path) -> None:
    with lock(s3, tmp_path) as held:
        assert names(s3) == ["run.lock"]
        assert lock(s3, tmp_path).live() == [held.path]
        with pytest.raises(UsageError, match="Another run works in"), lock(s3, tmp_path):
            pass
        with pytest.raises(UsageError, match=r"under run\.lock"), lock(s3, tmp_path, Shard(1, 2)):
            pass
    assert names(s3) == []


def test_shards_of_one_plan_work_side_by_side(s3: Any, tmp_path: Path) -> None:
    with lock(s3, tmp_path, Shard(1, 2)), lock(s3, tmp_path, Shard(2, 2)):
        assert len(lock(s3, tmp_path).live()) == 2


def test_of_many_at_once_one_has_it(s3: Any, tmp_path: Path) -> None:
    def enter(held: ObjectLock) -> ObjectLock | None:
        try:
            return held.__enter__()
        except FolderInUseError:
            return None

    with ThreadPoolExecutor(8) as threads:
        entered = [held for held in threads.map(enter, [lock(s3, tmp_path) for _ in range(8)]) if held]
    assert len(entered) == 1
    entered[0].__exit__(None, None, None)


def test_a_dead_run_s_lock_is_taken(s3: Any, tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    write_lock(s3, socket.gethostname(), process.pid)
    with lock(s3, tmp_path):
        assert names(s3) == ["run.lock"]


def test_a_lock_without_a_beat_is_stale_by_the_store_s_clock(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lock(s3, "elsewhere", 1)
    with pytest.raises(UsageError, match="host elsewhere"), lock(s3, tmp_path):
        pass
    monkeypatch.setattr(lock_module, "STALE_S", -1.0)
    with lock(s3, tmp_path):
        assert json.loads(s3.files.cat_file(f"{s3.url}/run/run.lock"))["host"] == socket.gethostname()


def test_the_heart_beats_and_notices_a_thief(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "HEARTBEAT_S", 0.05)
    with lock(s3, tmp_path) as held:
        puts = s3.faults.counts["PUT"]
        wait_until(lambda: s3.faults.counts["PUT"] > puts + 2)
        held.check()
        write_lock(s3, "elsewhere", 1)

        def is_lost() -> bool:
            try:
                held.check()
            except CannotContinueError:
                return True
            return False

        wait_until(is_lost)
    assert names(s3) == ["run.lock"]  # it is the other's now


def test_where_conditions_are_ignored_it_is_a_lease(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = ObjectStore.write

    def ignoring(self: ObjectStore, name: str, content: bytes, *, create: bool = False) -> None:
        write(self, name, content)

    monkeypatch.setattr(ObjectStore, "write", ignoring)
    monkeypatch.setattr(lock_module, "LEASE_S", 0.2)

    def enter(held: ObjectLock) -> ObjectLock | None:
        try:
            return held.__enter__()
        except FolderInUseError:
            return None

    with ThreadPoolExecutor(4) as threads:
        entered = [held for held in threads.map(enter, [lock(s3, tmp_path) for _ in range(4)]) if held]
    assert len(entered) == 1
    with pytest.raises(FolderInUseError), lock(s3, tmp_path):
        pass
    entered[0].__exit__(None, None, None)
