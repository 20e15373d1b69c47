"""One live run per folder (and shard): a lock file with host, pid and heartbeat. No flock: it fails on NFS."""

from __future__ import annotations

import errno
import json
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tts_batch.errors import CannotContinueError, UsageError
from tts_batch.plan.shards import Shard

WHOLE = Shard()
STALE_S = 60.0
HEARTBEAT_S = 10.0

_held_here: set[Path] = set()  # a second run in a thread of this very process is live too


class FolderInUseError(UsageError):
    """Another run works in the folder."""


class RunLock:
    """Held from `__enter__` to `__exit__`. A thread touches the file every 10 s; `check` says if it was taken away.

    A lock is stale when its process is gone from this host, or when it was not touched for 60 s. Its age is measured
    against a file written in the same folder, so that the clocks of two hosts need not agree.
    """

    def __init__(self, folder: Path, shard: Shard = WHOLE) -> None:
        self._shard = shard
        self.path = folder.resolve() / f"{shard.name}run.lock"
        self._token = secrets.token_hex(8)
        self._stop = threading.Event()
        self._lost = False
        self._heart = threading.Thread(target=self._beat, name="lock-heartbeat", daemon=True)

    def __enter__(self) -> RunLock:
        """Raises FolderInUseError when another run has it, UsageError when the folder cannot be written to."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            while not self._try_create():
                self._remove_if_stale()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise UsageError(f"{self.path.parent} is no folder to write to: {error.strerror}.") from None
        for other in sorted(self.path.parent.glob("*run.lock")):
            beside_us = other == self.path or other.name.endswith(f"-of-{self._shard.count}-run.lock")
            owner = read_owner(other)
            if not beside_us and owner is not None and not _is_stale(other, owner):
                self.path.unlink()
                raise FolderInUseError(
                    f"Another run works in {self.path.parent}, under {other.name}. Wait for its end."
                )
        _held_here.add(self.path)
        self._heart.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._heart.join()
        _held_here.discard(self.path)
        if self._is_ours():
            self.path.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise CannotContinueError when another run has taken over, say after this one was suspended for a minute."""
        if self._lost:
            raise CannotContinueError(f"Another run has taken over {self.path.parent}; this one stops.")

    def _try_create(self) -> bool:
        mine = self.path.with_name(f"{self.path.name}.{self._token}")
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "token": self._token}
        mine.write_text(json.dumps(owner), encoding="utf-8")
        try:
            os.link(mine, self.path)  # fails when the lock exists, on NFS too
        except FileExistsError:
            return False
        finally:
            mine.unlink()
        return True

    def _remove_if_stale(self) -> None:
        owner = read_owner(self.path)
        if owner is None:
            return  # just released
        if not _is_stale(self.path, owner):
            raise FolderInUseError(
                f"Another run works in {self.path.parent} (host {owner.get('host')}, process {owner.get('pid')}). "
                f"Wait for its end, or stop it; a dead one's lock is free after {STALE_S:.0f} s."
            )
        aside = self.path.with_name(f"{self.path.name}.stale.{self._token}")
        try:
            self.path.rename(aside)
        except FileNotFoundError:
            return
        moved = read_owner(aside)
        if moved is not None and moved.get("token") != owner.get("token"):
            os.link(aside, self.path)  # a third run was faster and its lock is fresh: give it back
        aside.unlink()

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            with suppress(OSError):  # of a file system that is away for a moment
                if not self._is_ours():
                    self._lost = True
                    return
                os.utime(self.path)

    def _is_ours(self) -> bool:
        owner = read_owner(self.path)
        return owner is not None and owner.get("token") == self._token


def live_locks(folder: Path) -> list[Path]:
    """Return the locks of the runs, each of the whole table or of a shard, that work in `folder` now."""
    return [path for path in sorted(folder.glob("*run.lock")) if is_live(path)]


def read_owner(path: Path) -> dict[str, Any] | None:
    """Return who holds a lock, or None when nobody does. A torn file has an owner without a name."""
    try:
        owner = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError:
        owner = {}
    return owner if isinstance(owner, dict) else {}


def is_live(path: Path) -> bool:
    """Say whether the run that made this lock still beats; writes nothing, so another host's clock is trusted."""
    owner = read_owner(path)
    if owner is None or _is_abandoned(path, owner):
        return False
    with suppress(FileNotFoundError):
        return time.time() - path.stat().st_mtime <= STALE_S
    return False


def _is_stale(path: Path, owner: dict[str, Any]) -> bool:
    return path not in _held_here and (_is_abandoned(path, owner) or lock_age_s(path) > STALE_S)


def _is_abandoned(path: Path, owner: dict[str, Any]) -> bool:
    """Whether the owner was a process of this host that is gone."""
    if path.resolve() in _held_here or owner.get("host") != socket.gethostname():
        return False
    # Our own pid in somebody's lock: a restarted container counts pids from 1 again.
    return owner.get("pid") == os.getpid() or not _process_exists(owner.get("pid"))


def lock_age_s(path: Path) -> float:
    """Return the seconds since the lock was touched, by the clock of the file system that holds it."""
    probe = path.with_name(f"{path.name}.clock.{secrets.token_hex(4)}")
    probe.touch()
    try:
        return probe.stat().st_mtime - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
    finally:
        probe.unlink()


def _process_exists(pid: Any) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
