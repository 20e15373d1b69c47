"""Which part of a table a run makes, so that several runs, on several machines, share one run folder."""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

from tts_batch.errors import UsageError


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `number` of `count`, from 1. An id decides where its row belongs, so that its place in the table does not.

    The rows of every shard are an even mixture of the table's.
    """

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str | None) -> Shard:
        """Read "2/8"; None is the whole table. Raises UsageError for a part that is none."""
        if text is None:
            return cls()
        number, count = map(int, text.split("/"))
        if not 1 <= number <= count:
            raise UsageError(f"--shard {text} is no part: use I/N with I from 1 to N.")
        return cls(number, count)

    @property
    def is_whole(self) -> bool:
        return self.count == 1

    @property
    def name(self) -> str:
        """What its locks and journal folders are called; the whole table's have no name of their own."""
        return "" if self.is_whole else f"shard-{self.number}-of-{self.count}-"

    def holds(self, row_id: str) -> bool:
        return self.is_whole or crc32(row_id.encode("utf-8", "surrogatepass")) % self.count == self.number - 1
