"""Training logs: lines on the screen, and the same numbers as JSON lines in a file."""

from __future__ import annotations

import json
import time
from pathlib import Path

from torch import Tensor


class Log:
    """A log file that can be read during training."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")
        self._start = time.monotonic()

    def say(self, text: str) -> None:
        """Write a sentence, with the seconds since the log began."""
        print(f"[{time.monotonic() - self._start:6.1f} s] {text}", flush=True)

    def row(self, **values: float | Tensor) -> None:
        """Write named numbers. Reading a tensor waits for the device, so call it rarely."""
        numbers = {n: float(v.detach() if isinstance(v, Tensor) else v) for n, v in values.items()}
        self.say("  ".join(f"{name} {number:.4g}" for name, number in numbers.items()))
        self._file.write(json.dumps(numbers) + "\n")
        self._file.flush()
