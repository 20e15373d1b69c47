"""References that are URLs: each is fetched once, and kept under a hash of its content."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import BinaryIO, Protocol, cast

from tts_batch.dataset.web import MAX_BYTES, RefusedError, WebError, download
from tts_batch.errors import RowError, TTSBatchError
from tts_batch.object_store import ObjectStore
from tts_batch.records import Failure

MAX_FETCH_S = 60.0  # with all tries
WAITS_S = (1.0, 2.0)  # before the second and the third try
FRESH_S = 24 * 3600.0  # after that a URL is asked again


class Download(Protocol):
    """How a file is downloaded: web.download, or with other rules in tests."""

    def __call__(self, url: str, target: BinaryIO, deadline: float) -> None:
        """Write the file at `url` into `target`; raises WebError."""


class Fetcher:
    """Downloads the files of URLs for one job, each once; a failed URL is not tried again for the next row.

    `folder` keeps the files under hashes of their content, and for each URL which of them it was. A run that follows
    within a day takes those, so that it makes the same rows; later the URL is asked again, and where it does not answer
    the older file is used.
    """

    def __init__(self, folder: Path, download: Download = download) -> None:
        self._folder = folder
        self._download = download
        self._pending: dict[str, Future[Path | Failure]] = {}
        self._results: dict[str, Path | Failure] = {}

    def start(self, url: str) -> None:
        """Begin to fetch `url` on a thread of its own, unless that was done before."""
        if url in self._results or url in self._pending:
            return
        if (kept := self._kept(url, FRESH_S)) is not None:
            self._results[url] = kept
            return
        future: Future[Path | Failure] = Future()
        self._pending[url] = future
        # A daemon: the program may end while a server has not answered.
        Thread(target=self._fetch_into, args=(future, url), name="fetch", daemon=True).start()

    def path(self, url: str) -> Path:
        """Return the local file of `url`, waiting for it. Raises RowError(url_refused, ref_unreadable)."""
        self.start(url)
        if url in self._pending:
            self._results[url] = self._pending.pop(url).result()
        result = self._results[url]
        if isinstance(result, Failure):
            raise RowError(result.reason, result.message)
        return result

    def _fetch_into(self, future: Future[Path | Failure], url: str) -> None:
        try:
            future.set_result(self._fetch(url))
        except BaseException as error:  # unexpected, but the row that waits for this URL must not wait for ever
            future.set_exception(error)

    def _fetch(self, url: str) -> Path | Failure:
        try:
            return self._keep(url)
        except RefusedError as error:
            return Failure("url_refused", f"ref_audio {_short(url)} was not fetched: {error}.")
        except (WebError, OSError) as error:
            older = self._kept(url, float("inf"))
            return older or Failure("ref_unreadable", f"ref_audio {_short(url)} could not be fetched: {error}.")

    def _keep(self, url: str) -> Path:
        """Fetch a file into the folder; raises WebError when the last try fails."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with _temporary_file(self._folder) as file:
            self._try(url, file)
            file.seek(0)
            kept = self._folder / _sha256(file)
            os.replace(file.name, kept)
        with _temporary_file(self._folder) as record:
            record.write(kept.name.encode())
            record.flush()
            os.replace(record.name, self._record(url))
        return kept

    def _kept(self, url: str, max_age_s: float) -> Path | None:
        record = self._record(url)
        try:
            kept = self._folder / record.read_text()
            fresh = time.time() - record.stat().st_mtime <= max_age_s
        except (OSError, ValueError):  # there is no record, or it is damaged
            return None
        return kept if fresh and kept.is_file() else None

    def _record(self, url: str) -> Path:
        return self._folder / f"url-{hashlib.sha256(url.encode('utf-8', 'surrogatepass')).hexdigest()}"

    def _try(self, url: str, target: BinaryIO) -> None:
        deadline = time.monotonic() + MAX_FETCH_S
        for wait_s in (*WAITS_S, None):
            target.seek(0)
            target.truncate()
            try:
                (self._download if url.lower().startswith("http") else download_object)(url, target, deadline)
                target.flush()
                return
            except WebError as error:
                if wait_s is None or not error.transient or time.monotonic() + wait_s >= deadline:
                    raise
            time.sleep(wait_s)


def download_object(url: str, target: BinaryIO, deadline: float) -> None:
    """Write the object at `url` into `target`. Raises WebError; what may pass was tried again already."""
    folder, _, name = url.rpartition("/")
    try:
        store = ObjectStore(folder)
        if store.size(name) > MAX_BYTES:
            raise RefusedError(f"it has more than {MAX_BYTES} bytes")
        target.write(store.read(name))
    except FileNotFoundError:
        raise WebError("it does not exist") from None
    except TTSBatchError as error:
        raise WebError(str(error).rstrip(".")) from error


@contextmanager
def _temporary_file(folder: Path) -> Iterator[BinaryIO]:
    """A file under a unique name, removed at the end unless it was renamed."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".", delete=False) as file:
        try:
            yield cast(BinaryIO, file)
        finally:
            Path(file.name).unlink(missing_ok=True)


def _sha256(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()


def _short(url: str) -> str:
    return repr(url if len(url) <= 200 else url[:200] + "…")
