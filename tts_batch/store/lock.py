"""One live run per folder (and shard): a lock file with host, pid and heartbeat. No flock: it fails on NFS."""

from __future__ import annotations

import errno
import json
import logging
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tts_batch.errors import CannotContinueError, UsageError
from tts_batch.object_store import ObjectStore, StoreError

if TYPE_CHECKING:
    from tts_batch.plan.shards import Shard

STALE_S = 60.0
HEARTBEAT_S = 10.0
LEASE_S = 2.0  # until all who saw no lock at the same moment have put theirs

log = logging.getLogger(__name__)

_live_tokens: set[str] = set()  # of locks that this process holds, or is about to


class FolderInUseError(UsageError):
    """Another run works in the folder."""


class RunLock:
    """Held from `__enter__` to `__exit__`. A thread touches the file every 10 s; `check` raises if it was taken over.

    A lock is stale when its process is gone from this host, or when it was not touched for 60 s. Its age is measured
    against a file written in the same folder, so that the clocks of two hosts need not agree.

    Files are created with O_EXCL and replaced by rename, which are atomic on NFS too, and on file systems without hard
    links. A stale lock is replaced by the process that has created its successor, "run.lock.TOKEN": TOKEN is the stale
    lock's own, so that of all who found it stale one replaces it, and nobody replaces another lock by mistake. The
    successor of a process that has died is itself a stale lock.
    """

    def __init__(self, folder: Path, shard: Shard | None = None) -> None:
        """Prepare to lock `folder` for a whole table, or for one shard of it."""
        self.path = folder.resolve() / f"{shard.name if shard else ''}run.lock"
        self._shard = shard
        self._token = secrets.token_hex(8)
        self._stop = threading.Event()
        self._lost = False
        self._heart = threading.Thread(target=self._beat, name="lock-heartbeat", daemon=True)

    def __enter__(self) -> RunLock:
        """Raises FolderInUseError when another run has it, UsageError when the folder cannot be written to."""
        _live_tokens.add(self._token)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._take(self.path)
            self._check_others()
        except OSError as error:
            _live_tokens.discard(self._token)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise UsageError(
                f"{self.path.parent} cannot be written to: {error.strerror}. Choose another folder."
            ) from None
        except BaseException:
            _live_tokens.discard(self._token)
            raise
        self._heart.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._heart.join()
        _live_tokens.discard(self._token)
        with suppress(StoreError):  # it is stale soon
            if self._is_ours():
                self._remove(self.path)

    def check(self) -> None:
        """Raise CannotContinueError when another run has taken over, say after this one was suspended for a minute."""
        if self._lost:
            raise CannotContinueError(f"Another run has taken over {self.path.parent}; this run stops.")

    def _take(self, path: Path) -> None:
        """Make the file `path`, or replace a stale one. Raises FolderInUseError when another process has it."""
        while not self._create(path):
            owner = self._owner(path)
            if owner is None:
                continue  # just released
            if owner.get("token") == self._token:
                return
            if not self._is_stale(path, owner):
                who = f"host {owner.get('host')}, process {owner.get('pid')}" if owner else "it has just begun"
                raise FolderInUseError(
                    f"Another run works in {self.path.parent} ({who}). Wait for its end, or stop it; "
                    f"a dead one's lock is free after {STALE_S:.0f} s."
                )
            successor = path.with_name(f"{path.name}.{owner.get('token', 'torn')}")
            self._take(successor)
            if self._owner(path) == owner and self._is_stale(path, owner):
                with suppress(FileNotFoundError):  # we were suspended for so long that we were replaced
                    self._replace(successor, path)
            else:
                self._remove(successor)

    def _create(self, path: Path) -> bool:
        """Make a file that names this process; return False when there is one."""
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return False
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(self._holder, file)
        except OSError:
            path.unlink()
            raise
        return True

    @property
    def _holder(self) -> dict[str, Any]:
        return {"host": socket.gethostname(), "pid": os.getpid(), "token": self._token}

    def _check_others(self) -> None:
        """Release the lock and raise FolderInUseError when a run of another plan works in the folder."""
        for other in self._list():
            if other == self.path or (self._shard and other.name.endswith(f"-of-{self._shard.count}-run.lock")):
                continue
            owner = self._owner(other)
            if owner is not None and not self._is_stale(other, owner):
                self._remove(self.path)
                raise FolderInUseError(
                    f"Another run works in {self.path.parent}, under {other.name}. Wait for its end."
                )

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            with suppress(OSError, StoreError):  # of a file system or a store that is unavailable for a moment
                if not self._is_ours():
                    self._lost = True
                    return
                self._touch()

    def _is_ours(self) -> bool:
        owner = self._owner(self.path)
        return owner is not None and owner.get("token") == self._token

    # What differs in an object store

    def _owner(self, path: Path) -> dict[str, Any] | None:
        return read_owner(path)

    def _is_stale(self, path: Path, owner: dict[str, Any]) -> bool:
        return _is_stale(path, owner)

    def _replace(self, successor: Path, path: Path) -> None:
        successor.rename(path)

    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def _touch(self) -> None:
        os.utime(self.path)

    def _list(self) -> list[Path]:
        return sorted(self.path.parent.glob("*run.lock"))


class ObjectLock(RunLock):
    """A lock in an object store: an object that is put on condition that there is none (If-None-Match).

    A store that ignores the condition is found out: there the lock is a lease. Who puts it waits for 2 s, and has it if
    it is still its own. Ages are measured by the store's clock. Paths are names in the store, below the working copy.
    """

    def __init__(self, store: ObjectStore, folder: Path, shard: Shard | None = None) -> None:
        super().__init__(folder, shard)
        self._store, self._folder = store, self.path.parent
        self._content = json.dumps(self._holder).encode()

    def live(self) -> list[Path]:
        """Return the locks of the runs that work in the folder now."""
        return [path for path in self._list() if (owner := self._owner(path)) and not self._is_stale(path, owner)]

    def _create(self, path: Path) -> bool:
        name = path.name
        if self._owner(path) is not None or not self._put(name, self._content):
            return False
        if self._put(name, self._content + b" "):
            log.warning("%s ignores conditions (If-None-Match): its lock is a lease", self._store.url)
            self._store.write(name, self._content)
            time.sleep(LEASE_S)
            return (self._owner(path) or {}).get("token") == self._token
        return True

    def _put(self, name: str, content: bytes) -> bool:
        try:
            self._store.write(name, content, create=True)
        except FileExistsError:
            return False
        return True

    def _owner(self, path: Path) -> dict[str, Any] | None:
        try:
            return _parse_owner(self._store.read(path.name))
        except FileNotFoundError:
            return None

    def _is_stale(self, path: Path, owner: dict[str, Any]) -> bool:
        if owner.get("token") in _live_tokens:
            return False
        return _is_abandoned(owner) or self._age_s(path.name) > STALE_S

    def _age_s(self, name: str) -> float:
        probe = f"{name}.clock.{secrets.token_hex(4)}"
        self._store.write(probe, b"")
        try:
            now, then = self._store.modified(probe), self._store.modified(name)
        except FileNotFoundError:
            return 0.0
        finally:
            self._store.remove(probe)
        return (now - then).total_seconds()

    def _replace(self, successor: Path, path: Path) -> None:
        self._store.write(path.name, self._content)
        self._store.remove(successor.name)

    def _remove(self, path: Path) -> None:
        self._store.remove(path.name)

    def _touch(self) -> None:
        self._store.write(self.path.name, self._content)

    def _list(self) -> list[Path]:
        names: list[str] = sorted(self._store.names())
        return [self._folder / name for name in names if name.endswith("run.lock")]


def live_locks(folder: Path) -> list[Path]:
    """Return the locks of the runs, each of the whole table or of a shard, that work in `folder` now."""
    return [path for path in sorted(folder.glob("*run.lock")) if is_live(path)]


def read_owner(path: Path) -> dict[str, Any] | None:
    """Return who holds a lock, None when there is no lock. The owner of a torn file is empty."""
    try:
        return _parse_owner(path.read_bytes())
    except FileNotFoundError:
        return None


def _parse_owner(content: bytes) -> dict[str, Any]:
    try:
        owner = json.loads(content)
    except ValueError:
        owner = {}
    return owner if isinstance(owner, dict) else {}


def is_live(path: Path) -> bool:
    """Say whether the run that made this lock still touches it; writes nothing, so another host's clock is trusted."""
    owner = read_owner(path)
    if owner is None or _is_abandoned(owner):
        return False
    with suppress(FileNotFoundError):
        return time.time() - path.stat().st_mtime <= STALE_S
    return False


def _is_stale(path: Path, owner: dict[str, Any]) -> bool:
    return owner.get("token") not in _live_tokens and (_is_abandoned(owner) or lock_age_s(path) > STALE_S)


def _is_abandoned(owner: dict[str, Any]) -> bool:
    """Whether the owner was a process of this host that is gone."""
    if owner.get("token") in _live_tokens or owner.get("host") != socket.gethostname():
        return False
    # Our own pid in another's lock: a restarted container counts pids from 1 again.
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
