"""The clip process, `python -m tts_batch.worker.clip_process FD`: examines, encodes, writes and records clips.

One of a worker's few. It ends with the worker at the other end of the socket FD, and never imports torch. Clips are
committed in groups: they get into the run folder, then their journal lines; on a disk at most 1 s or 256 rows late.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path

from tts_batch.ipc.messages import (
    ActiveRow,
    CloseWriter,
    CommitNow,
    FromClipProcess,
    OpenWriter,
    RowsRecorded,
    ToClipProcess,
    WorkerFailed,
    ended_rows,
)
from tts_batch.ipc.processes import leave_signals_to_parent
from tts_batch.ipc.transport import Channel
from tts_batch.object_store import StoreError
from tts_batch.store.clip_sink import DISK_FULL, Staged
from tts_batch.store.journal import Outcome
from tts_batch.store.storage import storage_of
from tts_batch.worker.finish import finish_clip
from tts_batch.worker.references import Tails

FAILED = 71  # exit status, for the log only
GROUP_ROWS = 256


class DiskFullError(Exception):
    """There is no space for a clip, or the object store is away. No partial file has a final name."""


@dataclass(frozen=True, slots=True)
class _Entry:
    outcome: Outcome | None  # None: files alone
    files: Mapping[str, bytes]


_Group = list[tuple[Outcome | None, "Future[Staged]"]]


class _Signal(Enum):
    COMMIT = auto()
    END = auto()


class ClipWriter:
    """Writes clips on threads of its own, so that who encodes them does not wait for the disk.

    While a group is committed, the files of the next are written. Groups are committed one after another: `committed`
    is called on the thread that does so with the outcomes that are recorded, `failed` with the error that ended the
    writer.
    """

    def __init__(
        self,
        out: Path,
        segment: Path,
        committed: Callable[[list[Outcome]], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._out = out
        storage = storage_of(out)
        self._clips = storage.open_clips(segment)
        self._segment = storage.open_segment(segment)
        self._committed = committed
        self._failed = failed
        self._queue: queue.Queue[_Entry | _Signal] = queue.Queue()  # the worker bounds what is in it
        self._is_ending = self._has_failed = False
        self._files = ThreadPoolExecutor(self._clips.threads, "clip-file")
        self._commits = ThreadPoolExecutor(1, "clip-commit")
        self._thread = threading.Thread(target=self._run, name="clip-writer", daemon=True)
        self._thread.start()

    def put(self, outcome: Outcome, files: Mapping[str, bytes]) -> None:
        """Queue a row that has ended, and its files by path in the run folder, without waiting for the disk."""
        self._queue.put(_Entry(outcome, files))

    def put_files(self, files: Mapping[str, bytes]) -> None:
        """Queue files of a row that has not ended."""
        if files:
            self._queue.put(_Entry(None, files))

    def commit_now(self) -> None:
        """Commit what is queued without waiting for more: nothing follows soon."""
        self._queue.put(_Signal.COMMIT)

    def close(self) -> None:
        """Commit what is queued and end the thread."""
        self._queue.put(_Signal.END)
        self._thread.join()

    def _run(self) -> None:
        before: Future[None] | None = None
        try:
            while not self._is_ending:
                group = self._collect()
                if before is not None:
                    before.result()
                before = self._commits.submit(self._commit_or_fail, group) if group else None
            if before is not None:
                before.result()
        except Exception as error:
            self._fail(error)
        finally:
            for pool in (self._files, self._commits):
                pool.shutdown(wait=False, cancel_futures=True)
            self._segment.close()
            self._clips.close()

    def _commit_or_fail(self, group: _Group) -> None:
        """Commit a group. What ends the writer is reported at once: the next group may come much later."""
        try:
            self._commit(group)
        except Exception as error:
            self._fail(error)
            raise

    def _fail(self, error: Exception) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        self._failed(as_disk_full(error, self._out))

    def _collect(self) -> _Group:
        """Wait for a row, then for more until the group is full or old enough, or a signal ends the wait.

        The rows' files are being written meanwhile.
        """
        group: _Group = []
        deadline = float("inf")
        while len(group) < GROUP_ROWS:
            try:
                entry = self._queue.get(timeout=max(deadline - time.monotonic(), 0.0) if group else None)
            except queue.Empty:
                break
            if entry is _Signal.END:
                self._is_ending = True
                break
            if entry is _Signal.COMMIT:
                if group:
                    break
                continue
            if not group:
                deadline = time.monotonic() + self._clips.group_s
            group.append((entry.outcome, self._files.submit(self._clips.stage, entry.files)))
        return group

    def _commit(self, group: _Group) -> None:
        """Audio, its name, its folder's entry, then the journal: each on the disk before the next.

        When the disk fills up, what fits is committed before the error goes on.
        """
        staged: list[tuple[Outcome | None, Staged]] = []
        full: OSError | None = None
        for outcome, files in group:
            try:
                staged.append((outcome, files.result()))
            except OSError as error:
                if error.errno in DISK_FULL:
                    full = error
                else:
                    staged.append((_write_failed(outcome, error), []))
        errors = self._clips.publish([files for _, files in staged], self._sync)
        ended = (_write_failed(outcome, error) if error else outcome
                 for (outcome, _), error in zip(staged, errors, strict=True))  # fmt: skip
        outcomes = [outcome for outcome in ended if outcome is not None]
        if outcomes:
            self._segment.append(outcomes)
            self._committed(outcomes)
        if full is not None:
            raise full

    def _sync(self, sync: Callable[[Path], None], folders: Iterable[Path]) -> None:
        list(self._files.map(sync, folders))


def as_disk_full(error: Exception, out: Path) -> Exception:
    """Return a DiskFullError for an error that means that nothing can be written, and any other as it is."""
    if isinstance(error, StoreError):
        return DiskFullError(str(error))
    is_full = isinstance(error, OSError) and error.errno in DISK_FULL
    return DiskFullError(f"The disk of {out} is full. Make room") if is_full else error


def _write_failed(outcome: Outcome | None, error: OSError) -> Outcome | None:
    if outcome is None:
        return None
    message = f"The clip could not be written: {error.strerror}."
    outcome = replace(outcome, status="failed", reason="write_failed", message=message)
    outcome = replace(outcome, audio=None, audio_bytes=0, audio_digest=None)
    return replace(outcome, codes=None, codes_bytes=0, codes_digest=None)


class ClipFinisher:
    """Finishes clips on the main thread, in the order of their tasks; the writer's threads put them on the disk."""

    def __init__(self, channel: Channel[FromClipProcess, ToClipProcess], opening: OpenWriter) -> None:
        self._channel, self._opening = channel, opening
        self._tails = Tails()
        self._writer = ClipWriter(opening.out, opening.segment, self._report, self._fail)

    def run(self) -> None:
        """Serve the worker until it says that nothing follows, or is gone."""
        while not isinstance(message := self._channel.receive(), CloseWriter | None):
            if isinstance(message, ActiveRow):
                self._finish(message)
            elif isinstance(message, CommitNow):
                self._writer.commit_now()
        if message is None:  # what is not recorded is made again by another worker, which may have begun
            os._exit(FAILED)
        self._writer.close()

    def _finish(self, row: ActiveRow) -> None:
        finished = finish_clip(row, self._opening.rules, self._opening.labels, self._tails)
        if finished.retry is not None:
            self._writer.put_files(finished.files)
            self._channel.send(finished.retry)
        else:
            assert finished.outcome is not None
            self._writer.put(finished.outcome, finished.files)

    def _report(self, outcomes: list[Outcome]) -> None:
        self._channel.send(RowsRecorded(ended_rows(outcomes)))

    def _fail(self, error: Exception) -> None:
        report_failure(self._channel, error)
        os._exit(FAILED)


def report_failure(channel: Channel[FromClipProcess, ToClipProcess], error: Exception) -> None:
    """Tell the worker what ends this process."""
    disk_full = isinstance(error, DiskFullError)
    channel.send(WorkerFailed(str(error) if disk_full else f"{type(error).__name__}: {error}", disk_full))


def main() -> None:
    """Serve the worker at the other end of the socket whose number is the only argument."""
    leave_signals_to_parent()
    channel = Channel[FromClipProcess, ToClipProcess](
        socket.socket(fileno=int(sys.argv[1])), (OpenWriter, ActiveRow, CommitNow, CloseWriter)
    )
    opening = channel.receive()
    if not isinstance(opening, OpenWriter):
        return
    try:
        ClipFinisher(channel, opening).run()
    except (ConnectionError, TimeoutError):
        os._exit(FAILED)  # the worker is gone, or does not read
    except Exception as error:
        traceback.print_exc()
        report_failure(channel, as_disk_full(error, opening.out))
        os._exit(FAILED)


if __name__ == "__main__":
    main()
