"""Faults of the disk and of clip processes, for programs that find this folder on PYTHONPATH; FAKE_ENGINE sets them.

"full_after": NUMBER OF FILES, then the disk is full; "fsync_s": how slow it is; "mute": FILE, a clip process kills its
worker once, and leaves that file, between a journal line and the message about it; "mute_clip": the same, of itself;
"clip_exit": STATUS, every clip process ends with it before it has begun; "group_s": SECONDS that a group of clips
waits for more in an object store; "deadline_s": how long such a store may be away.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from stat import S_ISREG
from typing import Any


def fill_disk(num_files: int) -> None:
    """Let the disk of this process have no space for the file after the first `num_files`."""
    fsync, calls = os.fsync, count()

    def full(descriptor: int) -> None:
        if next(calls) == num_files:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    os.fsync = full


def slow_disk(fsync_s: float) -> None:
    """Let every file of this process take its time until it is on the disk; folders take none."""
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        if S_ISREG(os.fstat(descriptor).st_mode):
            time.sleep(fsync_s)
        fsync(descriptor)

    os.fsync = slow


def die_after_recording(mark: Path, process: int) -> None:
    """Let a process die once between a journal line of this one and the message about it."""
    from tts_batch.store.journal import SegmentWriter

    append = SegmentWriter.append

    def append_and_die(self: SegmentWriter, outcomes: Iterable[Any]) -> None:
        append(self, outcomes)
        if not mark.exists():
            mark.touch()
            os.kill(process, signal.SIGKILL)
            time.sleep(60)

    SegmentWriter.append = append_and_die  # type: ignore[method-assign]


settings = json.loads(os.environ.get("FAKE_ENGINE", "{}"))
if "deadline_s" in settings:
    from tts_batch import object_store

    object_store.DEADLINE_S = settings["deadline_s"]
if "tts_batch.worker.clip_process" in sys.orig_argv:
    if "clip_exit" in settings:
        os._exit(settings["clip_exit"])
    if "full_after" in settings:
        fill_disk(settings["full_after"])
    if "group_s" in settings:
        from tts_batch.store.clip_sink import StoredClipSink

        StoredClipSink.group_s = settings["group_s"]
    if "fsync_s" in settings:
        slow_disk(settings["fsync_s"])
    if "mute" in settings:
        die_after_recording(Path(settings["mute"]), os.getppid())
    if "mute_clip" in settings:
        die_after_recording(Path(settings["mute_clip"]), os.getpid())
