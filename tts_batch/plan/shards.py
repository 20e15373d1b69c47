"""The part of a table that a run makes, so that runs on several machines share one run folder."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from tts_batch.errors import UsageError


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `number` of `count`, from 1. A row's shard depends on its id, not on its place in the table.

    The rows of every shard are an even mixture of the table's.
    """

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str | None) -> Shard:
        """Read "2/8"; None is the whole table. Raises UsageError for a number out of range."""
        if text is None:
            return cls()
        number, count = map(int, text.split("/"))
        if not 1 <= number <= count:
            raise UsageError(f"--shard {text} is out of range: use I/N with I from 1 to N.")
        return cls(number, count)

    @property
    def is_whole(self) -> bool:
        return self.count == 1

    @property
    def name(self) -> str:
        """The prefix of its lock's and journal folders' names; empty for the whole table."""
        return "" if self.is_whole else f"shard-{self.number}-of-{self.count}-"

    def holds(self, row_id: str) -> bool:
        return self.is_whole or crc32(row_id.encode("utf-8", "surrogatepass")) % self.count == self.number - 1
