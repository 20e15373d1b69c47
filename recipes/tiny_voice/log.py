"""The log of a training: lines to the screen, and every number to a file of JSON lines."""

from __future__ import annotations

import json
import time
from pathlib import Path

from torch import Tensor


class Log:
    """A log that can be read while it grows."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")
        self._start = time.monotonic()

    def message(self, text: str) -> None:
        """Print a message, with the seconds since the log began."""
        print(f"[{time.monotonic() - self._start:6.1f} s] {text}", flush=True)

    def metrics(self, **values: float | Tensor) -> None:
        """Write named numbers. Reading a tensor waits for the device, so do it seldom."""
        numbers = {n: float(v.detach() if isinstance(v, Tensor) else v) for n, v in values.items()}
        self.message("  ".join(f"{name} {number:.4g}" for name, number in numbers.items()))
        self._file.write(json.dumps(numbers) + "\n")
        self._file.flush()
