"""Splitting long texts: at the ends of sentences, else at commas, else between words, else within a word."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import regex

from tts_batch.dataset.spoken_text import has_speech

_UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}"  # scripts without spaces between words
_AFTER = rf"(?=\s|\Z|[{_UNSPACED}\u3001-\u303f\uff00-\uffef])"
_CLOSING = r"""["'’”»›」』】〉》）)\]}]*"""
_NEVER_FIRST = "[ーゝゞヽヾ々ぁぃぅぇぉっゃゅょァィゥェォッャュョ]"

# A mark of ASCII is an end only before a space or a script without spaces: 3.14, 1,000 and example.com stay whole.
# Runs of marks are taken whole or not at all: tried in every part, a line of dots would take minutes.
_STOP = regex.compile(rf"(?|([。！？｡．][.!?…。！？｡．]*){_CLOSING}|(?<![.!?…])([.!?…]++){_CLOSING}{_AFTER})\s*")
_BLANK_LINE = regex.compile(r"\s*\n\s*\n\s*")
_LINE_END = regex.compile(r"\s*\n\s*")
_COMMA = regex.compile(rf"(?:[，、；：]+{_CLOSING}|(?<![,;:–—…])[,;:–—…]++{_CLOSING}{_AFTER})\s*")
_WORD_END = regex.compile(
    rf"\s+|(?<=[{_UNSPACED}])(?=\p{{L}})(?!{_NEVER_FIRST})|(?<=\p{{L}})(?=[{_UNSPACED}])(?!{_NEVER_FIRST})"
)
_CHARACTER = regex.compile(r"\X")  # a grapheme, so that an accent stays with its letter

# Before a full stop that does not end the sentence: initials (J. | z.B. | т.е.), ordinals and numbers of lists
# (3. | 12.), and abbreviations before a name or a number.
_ABBREVIATIONS = """
    approx capt co col corp dept dr drs est fig gen hon inc jr lt ltd mr mrs ms mt no pp prof rev sgt sr st vol vs
    jan feb mar apr jun jul aug sep sept oct nov dec al cf abs bd bzw ca evtl ggf hl hr inkl nr str fr mm mme mlle
    dra núm pág sra srta ud uds dott ing sig гг им рис руб см стр ул
"""
_ABBREVIATED = regex.compile(
    r"(?:(?<!\w)(?:[\p{Latin}\p{Cyrillic}]\.)*[\p{Latin}\p{Cyrillic}]"
    rf"|(?<![\w.,:])\d{{1,2}}|(?<!\w)(?:{'|'.join(_ABBREVIATIONS.split())}))\Z",
    regex.IGNORECASE,
)
_LOOK_BACK = 16  # characters before a full stop, more than the longest of these


def split_text(text: str, limit: int) -> list[str]:
    """Return `text` in pieces of at most `limit` characters, in order; a shorter text unchanged.

    Nothing is lost but white space at the cuts. There are as few pieces as the limit allows, of about equal length,
    and each has something to speak, except where `limit` consecutive characters have nothing.
    """
    if len(text.strip()) <= limit:
        return [text]
    return [piece.strip() for piece in _split(text, limit, _LEVELS)]


def _split(text: str, limit: int, levels: Sequence[_Cuts]) -> list[str]:
    """Cut at the first of `levels`, and at the next what is still too long; then join neighbours that fit."""
    if len(text.strip()) <= limit:
        return [text]
    if not levels:
        return [text[start : start + limit] for start in range(0, len(text), limit)]
    parts = _parts(text, levels[0](text))
    return _pack([piece for part in parts for piece in _split(part, limit, levels[1:])], limit)


def _parts(text: str, cuts: Iterator[int]) -> list[str]:
    """Return `text` cut at positions; a part without speech is joined to the one before it, or at the head after it."""
    parts: list[str] = []
    for start, end in pairwise([0, *cuts, len(text)]):
        part = text[start:end]
        if parts and not (has_speech(part) and has_speech(parts[-1])):
            parts[-1] += part
        else:
            parts.append(part)
    return parts


def _pack(parts: list[str], limit: int) -> list[str]:
    """Join neighbours into as few pieces as `limit` allows, with the longest as short as that number allows."""

    def pack(most: int) -> list[str]:
        pieces = [parts[0]]
        for part in parts[1:]:
            if len((pieces[-1] + part).strip()) <= most:
                pieces[-1] += part
            else:
                pieces.append(part)
        return pieces

    fewest = len(pack(limit))
    return pack(bisect_left(range(limit), True, key=lambda most: len(pack(most)) <= fewest))


# Each yields the positions where a text may be cut; the best kind of position comes first.


def _stops(text: str) -> Iterator[int]:
    for stop in _STOP.finditer(text):
        start = stop.start()
        if stop[1] != "." or not _ABBREVIATED.search(text[max(0, start - _LOOK_BACK) : start]):
            yield stop.end()


def _sentence_ends(text: str) -> Iterator[int]:
    """Yield ends that no lower case follows: "Really?" she asked, and approx. five, are one sentence."""
    ends = {end for end in _stops(text) if not text[end : end + 1].islower()}
    yield from sorted(ends | {line.end() for line in _BLANK_LINE.finditer(text)})


def _line_ends(text: str) -> Iterator[int]:
    yield from sorted({*_stops(text), *(line.end() for line in _LINE_END.finditer(text))})


def _ends_of(pattern: regex.Pattern[str]) -> _Cuts:
    return lambda text: (found.end() for found in pattern.finditer(text))


_Cuts = Callable[[str], Iterator[int]]
_LEVELS: tuple[_Cuts, ...] = (_sentence_ends, _line_ends, _ends_of(_COMMA), _ends_of(_WORD_END), _ends_of(_CHARACTER))
