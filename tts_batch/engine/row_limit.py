"""The limit on rows decoded together: halved when memory runs out, raised again slowly."""

from __future__ import annotations

import logging

from tts_batch.engine.runner import Runner

logger = logging.getLogger(__name__)

ROUNDS_BEFORE_RAISING = 8  # full batches before the limit is raised; doubled after each further failure


class RowLimit:
    """Sets a runner's `max_num_seqs`. Most shortages pass: a burst of long prompts, another program on the device."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._most = runner.max_num_seqs
        self._rounds = ROUNDS_BEFORE_RAISING // 2
        self._num_ended = 0  # rows since the limit was changed

    def lower(self) -> None:
        """Halve the limit, after memory ran out with more than one row."""
        limit = self._runner.max_num_seqs
        self._runner.max_num_seqs = limit // 2
        self._num_ended = 0
        self._rounds *= 2
        logger.warning("out of memory with up to %d rows; going on with %d", limit, limit // 2)

    def note_ended(self, num_rows: int) -> None:
        """Record that `num_rows` rows were decoded without running out of memory."""
        limit = self._runner.max_num_seqs
        if limit == self._most:
            return
        self._num_ended += num_rows
        if self._num_ended >= self._rounds * limit:
            self._num_ended = 0
            self._runner.max_num_seqs = min(2 * limit, self._most)
            logger.info("memory has sufficed for up to %d rows; trying %d again", limit, self._runner.max_num_seqs)
