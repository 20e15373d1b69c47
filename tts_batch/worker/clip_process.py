"""The clip process, `python -m tts_batch.worker.clip_process FD`: examines, encodes, writes and records clips.

One of a worker's few. It ends with the worker at the other end of the socket FD, and never imports torch.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback

from tts_batch.ipc.messages import (
    ClipTask,
    CloseWriter,
    CommitNow,
    FromClipProcess,
    OpenWriter,
    RowEnd,
    RowsRecorded,
    ToClipProcess,
    WorkerFailed,
)
from tts_batch.ipc.processes import leave_signals_to_parent
from tts_batch.ipc.transport import Channel
from tts_batch.store.journal import Outcome
from tts_batch.worker.finish import finish_clip
from tts_batch.worker.references import Tails, load_file
from tts_batch.worker.sound import Tail
from tts_batch.worker.writer import ClipWriter, DiskFullError, as_disk_full

FAILED = 71  # exit status, for the log only


class ClipProcess:
    """Finishes clips on the main thread, in the order of their tasks; the writer's threads put them on the disk."""

    def __init__(self, channel: Channel[FromClipProcess, ToClipProcess], opening: OpenWriter) -> None:
        self._channel, self._opening = channel, opening
        self._tails = Tails()
        self._writer = ClipWriter(opening.out, opening.segment, self._report, self._fail)

    def run(self) -> None:
        """Serve the worker until it says that nothing follows, or is gone."""
        while not isinstance(message := self._channel.receive(), CloseWriter | None):
            if isinstance(message, ClipTask):
                self._finish(message)
            elif isinstance(message, CommitNow):
                self._writer.commit_now()
        if message is None:  # what is not recorded is made again by another worker, which may have begun
            os._exit(FAILED)
        self._writer.close()

    def _finish(self, task: ClipTask) -> None:
        finished = finish_clip(task, self._opening.rules, self._opening.labels, self._tail(task))
        if finished.retry is not None:
            self._writer.put_files(finished.files)
            self._channel.send(finished.retry)
        else:
            assert finished.outcome is not None
            self._writer.put(finished.outcome, finished.files)

    def _tail(self, task: ClipTask) -> Tail | None:
        file, has_audio = task.row.reference, any(piece.result.audio is not None for piece in task.results)
        is_wanted = self._opening.rules.limits.ref_correlation is not None and not task.row.x_vector_only
        return self._tails.find(file.key, lambda: load_file(file)) if file and has_audio and is_wanted else None

    def _report(self, outcomes: list[Outcome]) -> None:
        self._channel.send(RowsRecorded(tuple(map(RowEnd.of, outcomes))))

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
        socket.socket(fileno=int(sys.argv[1])), (OpenWriter, ClipTask, CommitNow, CloseWriter)
    )
    opening = channel.receive()
    if not isinstance(opening, OpenWriter):
        return
    try:
        ClipProcess(channel, opening).run()
    except (ConnectionError, TimeoutError):
        os._exit(FAILED)  # the worker is gone, or does not read
    except Exception as error:
        traceback.print_exc()
        report_failure(channel, as_disk_full(error, opening.out))
        os._exit(FAILED)


if __name__ == "__main__":
    main()
