"""stdout and stderr when their reader leaves: `| head`, a log pipe that ends, a stream that was closed from the start.

Messages without a reader are dropped, since a run is worth more than its messages. Data without a reader end the
command, with the status that a shell gives to a program that SIGPIPE ends.
"""

from __future__ import annotations

import io
import os
import select
import signal
import sys

NO_READER = 128 + signal.SIGPIPE
"""The exit status when the reader of stdout has left."""


def prepare_streams() -> None:
    """Open the standard streams that are closed, so that no file takes their numbers, and make stderr safe to write."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest free number: the stream's own
            os.set_inheritable(descriptor, True)
            setattr(sys, name, open(descriptor, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    raw = _Messages(sys.stderr.fileno(), "w", closefd=False)
    encoding = sys.stderr.encoding
    sys.stderr = io.TextIOWrapper(raw, encoding, "backslashreplace", write_through=True)


class _Messages(io.FileIO):
    """A stream that drops what is written to it once it cannot be written."""

    def write(self, data: bytes | bytearray | memoryview, /) -> int:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError:  # a pipe without a reader, a full disk, a descriptor that cannot be written
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self.fileno())
            os.close(null)
            return len(data)


def has_reader(descriptor: int) -> bool:
    """Return False when `descriptor` is a pipe or a socket without a reader."""
    poll = select.poll()
    poll.register(descriptor, 0)
    return not poll.poll(0)


def flush_stdout() -> bool:
    """Write out what stdout still holds; return False when its reader has left, and drop it."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
        return False
    return True


def drop_stdout() -> None:
    """Send what stdout still holds nowhere, so that the interpreter's exit does not fail over it."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
