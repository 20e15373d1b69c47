"""Files behind a URL (s3://, gs:// and what else fsspec has a driver for): each call with retries and a deadline."""

from __future__ import annotations

import errno
import random
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from tts_batch.errors import CannotContinueError, UsageError

CALL_S = 60.0  # one try of one call
DEADLINE_S = 180.0  # all tries of one call: a store that is away for longer ends the run, which the next one resumes
FIRST_WAIT_S, MAX_WAIT_S = 0.2, 10.0
THREADS = 16  # calls under way for many objects
MULTIPART_BYTES = 64 << 20  # larger files are uploaded in parts
WRITABLE = ("s3", "s3a", "gs", "gcs", "memory")
"""The schemes that a run or an export can be written to; `memory` is of one process, so that only exports can."""

_URL = re.compile(r"[a-z][a-z0-9+.-]+:/{2}", re.IGNORECASE)
_USERINFO = re.compile(r"(?<=://)[^/?#@\s]*@")
_SIGNED = re.compile(
    r"([?&](?:x-(?:amz|goog)-(?:signature|credential|security-token)|signature|sig|awsaccesskeyid|googleaccessid|"
    r"token|access_token|api_key)=)[^&#\s]+",
    re.IGNORECASE,
)
_DEFINITE = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
_NO_RETRY = frozenset({errno.EINVAL, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG})

T = TypeVar("T")


class StoreError(CannotContinueError):
    """An object store that does not answer, refuses, or has no such bucket."""


def is_url(text: str) -> bool:
    """Whether this is a URL and no path."""
    return _URL.match(text) is not None


def redacted(text: str) -> str:
    """Return the text without the passwords and signatures of the URLs in it."""
    text = _USERINFO.sub("***@", text)
    return _SIGNED.sub(r"\1***", text)


def check_url(url: str) -> str:
    """Return the URL. Raises UsageError when it holds credentials, which would end in run.json, logs and manifests."""
    if redacted(url) != url:
        raise UsageError(
            f"{redacted(url)} holds credentials. Leave them out: the library of the store finds them in the "
            "environment, in its own configuration, or with the machine."
        )
    return url


def open_file_system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path in it. Raises UsageError without a driver."""
    import fsspec

    options: dict[str, Any] = {"use_listings_cache": False}
    if url.startswith(("s3://", "s3a://")):
        given = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
        options["config_kwargs"] = {"connect_timeout": 10, "read_timeout": 30, "max_pool_connections": 64} | {
            "retries": {"total_max_attempts": 1},  # `_call` tries again, within its deadline
            **given,
        }
    try:
        file_system, root = fsspec.core.url_to_fs(check_url(url), **options)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{url} cannot be opened: {error}") from error
    return file_system, str(root)


def read_anywhere(name: str) -> bytes:
    """Return the content of a path or of a URL. Raises OSError, and StoreError."""
    if not is_url(name):
        return Path(name).read_bytes()
    folder, _, last = name.rpartition("/")
    return ObjectStore(folder).read(last)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What a listing says of an object."""

    num_bytes: int
    modified: datetime | None  # by the store's clock, where it says


class ObjectStore:
    """The objects whose URLs begin with one; names are relative to it. For use by many threads."""

    def __init__(self, url: str) -> None:
        """Raises UsageError for a URL with credentials, or without a driver."""
        self.url = url.rstrip("/")
        self._file_system, root = open_file_system(self.url)
        self._root = root.rstrip("/")
        self._is_away = False  # it did not answer within the last deadline: each call is tried once, until one succeeds

    def read(self, name: str) -> bytes:
        """Return an object. Raises FileNotFoundError, and StoreError."""
        return bytes(self._call("read", name, lambda: self._fs("cat_file", self._at(name))))

    def write(self, name: str, content: bytes, *, create: bool = False) -> None:
        """Put an object under its final name. With `create`, raises FileExistsError when there is one.

        A store that ignores the condition overwrites. Raises StoreError.
        """

        def put() -> None:
            try:
                self._fs("pipe_file", self._at(name), content, mode="create" if create else "overwrite")
            except FileExistsError:
                if self.read(name) != content:  # else it was an earlier try, whose answer was lost
                    raise

        self._call("write", name, put)

    def upload(self, name: str, path: Path) -> None:
        """Put a local file, in parts if it is large. Raises StoreError."""
        if path.stat().st_size <= MULTIPART_BYTES:
            self.write(name, path.read_bytes())
        else:
            deadline_s = DEADLINE_S + path.stat().st_size / 1e6
            put = lambda: self._fs("put_file", str(path), self._at(name), timeout_s=deadline_s)  # noqa: E731
            self._call("write", name, put, deadline_s)

    def download(self, name: str, path: Path) -> None:
        """Write an object into a local file, whole or not at all. Raises FileNotFoundError, and StoreError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.part")
        get = lambda: self._fs("get_file", self._at(name), str(temporary), timeout_s=10 * DEADLINE_S)  # noqa: E731
        self._call("read", name, get, 10 * DEADLINE_S)
        temporary.replace(path)

    def find(self, folder: str = "") -> dict[str, StoredObject]:
        """Return the objects in a folder and those below it, by name. Raises StoreError."""
        try:
            found = self._call("list", folder, lambda: self._fs("find", self._at(folder), detail=True))
        except FileNotFoundError:
            return {}
        return {path[len(self._root) + 1 :]: _stored(facts) for path, facts in found.items()}

    def names(self) -> list[str]:
        """Return the names in the top folder alone. Raises StoreError."""
        try:
            found = self._call("list", "", lambda: self._fs("ls", self._root, detail=True))
        except FileNotFoundError:
            return []
        return [facts["name"].rpartition("/")[2] for facts in found if facts["type"] == "file"]

    def size(self, name: str) -> int:
        """Return the size of an object in bytes. Raises FileNotFoundError, and StoreError."""
        return self._info(name).num_bytes

    def _info(self, name: str) -> StoredObject:
        return _stored(self._call("read", name, lambda: self._fs("info", self._at(name))))

    def modified(self, name: str) -> datetime:
        """Return when an object was put, by the store's clock. Raises FileNotFoundError, and StoreError."""
        modified = self._info(name).modified
        if modified is None:
            raise StoreError(f"{self.url} does not say when {name} was written, so that it cannot hold a lock.")
        return modified

    def remove(self, name: str) -> None:
        """Remove an object; one that does not exist is no error. Raises StoreError."""
        try:
            self._call("remove", name, lambda: self._fs("rm_file", self._at(name)))
        except FileNotFoundError:
            return

    def map(self, work: Callable[[str], object], names: Iterable[str]) -> None:
        """Call `work` for each name, many at once."""
        with ThreadPoolExecutor(THREADS, "object-store") as threads:
            for _ in threads.map(work, names):
                pass

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _fs(self, method: str, *arguments: Any, timeout_s: float = CALL_S, **options: Any) -> Any:
        if self._file_system.async_impl:  # of the others, none waits for a network
            options["timeout"] = timeout_s
        return getattr(self._file_system, method)(*arguments, **options)

    def _call(self, verb: str, name: str, call: Callable[[], T], deadline_s: float | None = None) -> T:
        """Call until it succeeds or cannot; wait longer each time, and not all for equally long."""
        deadline_s = 0.0 if self._is_away else DEADLINE_S if deadline_s is None else deadline_s
        started, wait_s = time.monotonic(), FIRST_WAIT_S
        where = f"{self.url}/{name}".rstrip("/")
        while True:
            try:
                answer = call()
                self._is_away = False
                return answer
            except _DEFINITE as error:
                if isinstance(error, FileNotFoundError) and verb == "write":
                    raise StoreError(f"{where} cannot be written: {redacted(str(error))}.") from error
                if isinstance(error, PermissionError):
                    raise StoreError(f"{self.url} refuses access to {name or 'its names'}: {_said(error)}") from error
                raise
            except Exception as error:  # a driver's own types: of botocore, aiohttp, google
                elapsed_s = time.monotonic() - started
                if not _is_transient(error):
                    raise StoreError(f"{where} cannot be {_PAST[verb]}: {_said(error)}") from error
                if elapsed_s + wait_s > deadline_s:
                    self._is_away = True
                    message = f"{where} could not be {_PAST[verb]} within {elapsed_s:.0f} s: {_said(error)}"
                    raise StoreError(message) from error
            time.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, MAX_WAIT_S)


_MODIFIED = ("LastModified", "mtime", "updated", "last_modified", "created")  # as s3fs, gcsfs and others call it
_PAST = {"read": "read", "write": "written", "list": "listed", "remove": "removed"}


def _is_transient(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno not in _NO_RETRY
    return type(error).__name__ not in {"NoCredentialsError", "PartialCredentialsError", "ParamValidationError"} and (
        not isinstance(error, ValueError | TypeError | NotImplementedError | AttributeError | ImportError)
    )


def _said(error: Exception) -> str:
    text = " ".join(redacted(str(error) or type(error).__name__).split())
    return f"{text[:300].rstrip('.')}."


def _stored(facts: dict[str, Any]) -> StoredObject:
    modified = next((facts[key] for key in _MODIFIED if facts.get(key)), None)
    if isinstance(modified, str):
        modified = datetime.fromisoformat(modified)
    elif isinstance(modified, int | float):
        modified = datetime.fromtimestamp(modified, UTC)
    return StoredObject(int(facts["size"] or 0), modified)
