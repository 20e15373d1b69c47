"""The `tts-batch` command, also `python -m tts_batch`: from its first moment on a signal has its exit status."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from tts_batch.errors import ExitStatus


def main() -> int:
    """Run the command line. A run handles signals itself, from its start to its end."""
    signal.signal(signal.SIGTERM, _leave)
    try:
        from tts_batch.cli.main import main as run_command

        return run_command()
    except KeyboardInterrupt:  # while the commands were imported; within one, click has seen to it
        return ExitStatus.INTERRUPTED


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(ExitStatus.STOPPED)  # an exception would be lost in the import of a compiled module


if __name__ == "__main__":
    sys.exit(main())
