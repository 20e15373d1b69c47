"""Lines of text: whether each begins with an id, as in lists of Kaldi, ESPnet and JSUT, which must not be spoken."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tts_batch.dataset.layouts import FieldContent, has_audio_suffix
from tts_batch.errors import UsageError

_SHOWN_LINES = 20
MIN_LINES = 3  # that begin with ids: fewer may do so by chance

# An id: no date, no time, no number, no word.
_NO_DATE = r"(?!\d{4}-\d\d-\d\d(?!\d))"
_ID = re.compile(rf"{_NO_DATE}(?=.*\d)(?=.*[A-Za-z_-])[A-Za-z0-9]+(?:[_.-][A-Za-z0-9]+)*")
_MIN_ID_CHARS = 6
_MAY_BE_ID = re.compile(rf"{_NO_DATE}(?=.*\d)(?=.*[A-Za-z_-])[\w.-]{{2,}}|0\d{{3,}}")
_NUMBERED = re.compile(r"[(\[]?(\d{1,9})[.):\]]?")
_OTHER_KINDS = (
    (re.compile(r"\d?\d:\d\d[:.,\d]* +--> +\d?\d:\d\d[:.,\d]*.*"), "subtitles, whose times would be spoken"),
    (re.compile(r'\(\s*\S+\s+".*"\s*\)'), "a list of Festival, whose ids would be spoken"),
)


def separator_of_ids(lines: Sequence[str], name: str, *, is_list: bool = False) -> str | None:
    """Return " " or ":" where every line is an id, that, and a text; None where lines are texts.

    `is_list`: the user says that they are ids and texts; then "," may be between them, too. Raises UsageError for what
    may be either, and for lines that are not to be spoken at all.
    """
    readings = {separator: fields for separator in " :," if (fields := _fields(lines, separator))}
    if is_list:
        tight = (
            separator
            for separator in ":,"
            if all(_may_be_id(start) for start, _ in readings.get(separator, [("", "")]))
        )
        return next(tight, " ")
    for pattern, kind in _OTHER_KINDS:
        if any(map(pattern.fullmatch, map(str.strip, lines[:_SHOWN_LINES]))):
            raise UsageError(f"{name} seems to be {kind}: write a table of its texts, or the line 'text' before them.")
    for separator, fields in readings.items():
        ids = [start for start, _ in fields]
        if len(set(ids)) < len(ids) or separator == "," or len(ids) < MIN_LINES:
            continue
        if all(len(each) >= _MIN_ID_CHARS and _ID.fullmatch(each) for each in ids):
            texts = FieldContent([rest for _, rest in fields])
            if texts.is_sentence and not texts.is_audio:
                return separator
    if any(_may_begin_with_ids([start for start, _ in fields]) for fields in readings.values()):
        raise _refusal(lines[0], name)
    return None


def _fields(lines: Sequence[str], separator: str) -> list[tuple[str, str]]:
    """Return what is before and behind the first `separator` of each line; nothing where half of them have none."""
    split = [line.strip().partition(separator) for line in lines]
    fields = [(start.strip(), rest.strip()) for start, _, rest in split]
    return fields if 2 * sum(bool(rest) for _, rest in fields) > len(fields) else []


def _may_begin_with_ids(starts: Sequence[str]) -> bool:
    if all(map(has_audio_suffix, starts)):
        return True
    if len(set(starts)) < len(starts):
        return False
    if len(starts) == 1:
        return len(starts[0]) >= _MIN_ID_CHARS and _ID.fullmatch(starts[0]) is not None
    numbers = [int(found[1]) for start in starts if (found := _NUMBERED.fullmatch(start))]
    is_count = len(numbers) == len(starts) >= MIN_LINES and numbers == [numbers[0] + i for i in range(len(numbers))]
    return is_count or all(map(_may_be_id, starts))


def _may_be_id(field: str) -> bool:
    return has_audio_suffix(field) or _MAY_BE_ID.fullmatch(field) is not None


def _refusal(line: str, name: str) -> UsageError:
    return UsageError(
        f"{name} could be lines of text, or of an id and a text, as in {line[:80]!r}: write the line 'text' before "
        "them if all of a line is to be spoken, or else give --map id=field1 --map text=field2."
    )
