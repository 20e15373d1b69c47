"""The `tts-batch` command, also `python -m tts_batch`: a signal has its exit status from the first moment on."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from tts_batch.errors import ExitStatus
from tts_batch.ipc.processes import STOP_SIGNALS


def main() -> int:
    """Run the command line and return its exit status. A run handles signals itself, from its start to its end."""
    for number in STOP_SIGNALS:
        if number != signal.SIGINT and signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _leave)
    try:
        from tts_batch.cli.streams import NO_READER, flush_stdout, prepare_streams

        prepare_streams()
        from tts_batch.cli.main import main as run_command

        status = run_command()
        return status if flush_stdout() else NO_READER
    except KeyboardInterrupt:  # while the commands were imported; within one, click handles it
        return ExitStatus.STOPPED


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(ExitStatus.STOPPED)  # an exception would be lost in the import of a compiled module


if __name__ == "__main__":
    sys.exit(main())
