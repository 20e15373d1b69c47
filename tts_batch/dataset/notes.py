"""Notes: what a user should know although nothing failed, each sentence once, with its count and first place."""

from __future__ import annotations


class Notes:
    """Collects notes while rows stream by; a million equal ones cost one entry."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, str]] = {}

    def add(self, sentence: str, where: str = "") -> None:
        """Note `sentence`. `where` is the row, or "" for a note on the whole input."""
        count, first = self._seen.get(sentence, (0, where))
        self._seen[sentence] = (count + 1, first)

    def sentences(self) -> list[str]:
        """The notes in the order in which they first came up, as a person reads them."""
        return [_with_count(sentence, count, first) for sentence, (count, first) in self._seen.items()]


def _with_count(sentence: str, count: int, first: str) -> str:
    if not first:
        return sentence
    return f"{sentence} ({count} rows, the first is {first})" if count > 1 else f"{sentence} ({first})"
