"""How far the run is, on stderr: one bar on a terminal, a plain line now and then in a log, or nothing."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from tqdm import tqdm

from tts_batch.choices import ProgressMode

PLAIN_EVERY_S = 30.0


class Progress:
    """Counts rows that end. `kept` rows were done by an earlier run: they count as rows, not as speed."""

    def __init__(self, mode: ProgressMode, total: int) -> None:
        if mode == "auto":
            mode = "bar" if sys.stderr.isatty() else "plain"
        self._plain, self._is_silent = mode == "plain", mode == "none"
        self._total = total
        self._rows = self._made = self._failed = 0
        self._audio_s = 0.0
        self._started = time.monotonic()
        self._next_line = self._started + PLAIN_EVERY_S
        self._bar = tqdm(total=total, unit="row", file=sys.stderr, dynamic_ncols=True, disable=mode != "bar")

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._plain:
            self._write_line()
        self._bar.close()

    def start_clock(self) -> None:
        """Speed counts from here: the models are loaded."""
        self._started = time.monotonic()

    def keep(self, rows: int = 1, *, failed: bool = False) -> None:
        """Count rows that were done, or found bad, before any work."""
        self._rows += rows
        self._failed += rows * failed
        if not self._bar.disable:
            self._bar.initial += rows  # tqdm leaves `initial` out of its rate and its ETA
        self._bar.update(rows)
        self.show()

    def end(self, audio_s: float, *, failed: bool) -> None:
        """Count a row that ended now, with the seconds of audio it gave."""
        self._rows += 1
        self._made += 1
        self._failed += failed
        self._audio_s += audio_s
        self._bar.update()
        self.show()

    def info(self, sentence: str) -> None:
        """Write a sentence to stderr without breaking the bar; with "none" only `warn` does."""
        if not self._is_silent:
            self.warn(sentence)

    def warn(self, sentence: str) -> None:
        """Write what went wrong."""
        if self._bar.disable:
            print(sentence, file=sys.stderr, flush=True)  # noqa: T201
        else:
            self._bar.write(sentence, file=sys.stderr)

    @property
    def audio_s_per_s(self) -> float:
        return self._audio_s / max(time.monotonic() - self._started, 1e-9)

    def show(self) -> None:
        """Bring the bar up to date, or write the next line when it is due."""
        if not self._bar.disable:
            self._bar.set_postfix_str(f"audio_s_per_s={self.audio_s_per_s:.1f}, failed={self._failed}", refresh=False)
        elif self._plain and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + PLAIN_EVERY_S
            self._write_line()

    def _write_line(self) -> None:
        left_s = (self._total - self._rows) * (time.monotonic() - self._started) / max(self._made, 1)
        eta = f"{left_s:.0f}" if self._made else "?"
        print(  # noqa: T201
            f"rows={self._rows}/{self._total} audio_s_per_s={self.audio_s_per_s:.1f} failed={self._failed} eta_s={eta}",
            file=sys.stderr,
            flush=True,
        )
