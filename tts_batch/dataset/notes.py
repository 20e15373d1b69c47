"""What a person should hear about although nothing failed: each sentence once, with how often and where first."""

from __future__ import annotations


class Notes:
    """Collects remarks while rows stream by; a million equal remarks cost one entry."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, str]] = {}

    def add(self, sentence: str, where: str = "") -> None:
        """Remark `sentence`. `where` is the row (or "" for a remark on the whole input)."""
        count, first = self._seen.get(sentence, (0, where))
        self._seen[sentence] = (count + 1, first)

    def sentences(self) -> list[str]:
        """The remarks in the order they first came up, as a person reads them."""
        return [_with_count(sentence, count, first) for sentence, (count, first) in self._seen.items()]


def _with_count(sentence: str, count: int, first: str) -> str:
    if not first:
        return sentence
    return f"{sentence} ({count} rows, the first is {first})" if count > 1 else f"{sentence} ({first})"
