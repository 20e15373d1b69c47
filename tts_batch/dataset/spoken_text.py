"""Text cells: whether there is anything to speak, and what in them will probably sound wrong.

Text is never rewritten here: what the table says is what the tokenizer gets.
"""

from __future__ import annotations

import re

from tts_batch.dataset.notes import Notes
from tts_batch.errors import RowError

# A letter or digit, but no Hangul filler: those are letters by category, yet drawn as nothing.
_SPOKEN = re.compile("[^\\W_\u115f\u1160\u3164\uffa0]")
_DAMAGE = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffd"
# Letters of scripts that none of the ten languages uses.
_OTHER = "\u0530-\u10ff\u1200-\u1c7f\u2c00-\u2c5f\ua4d0-\ua63f\ua800-\ua95f\ua980-\uabff\ufb1d-\ufdff\ufe70-\ufefc"
_GREEK = "\u0370-\u03ff"
_HIDDEN = (
    "\u00ad\u034f\u061c\u180e\u200b\u200c\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff\U000e0000-\U000e007f"
)
_JOINER = "\u200d"  # which also joins emoji
# Cyrillic and Greek letters, of which many are drawn as Latin ones are.
_LOOKALIKE = "\u0405\u0406\u0408\u0410-\u044f\u0455\u0456\u0458ΑΒΕΖΗΙΚΜΝΟΡΤΥΧο"
_SOUNDS = "\u0259\u02c8\u02cc\u02d0"  # ə and the marks of stress and length

_DAMAGED = re.compile(f"[{_DAMAGE}]")
_OTHER_SCRIPT = re.compile(f"[{_GREEK}]{{2}}|[{_OTHER}]")  # two, since one Greek letter is often a symbol
_INVISIBLE = re.compile(f"[{_HIDDEN}]|(?<![\u2600-\u27bf\ufe0f\U0001f000-\U0001faff]){_JOINER}")
_MIXED_WORD = re.compile(f"[A-Za-z][{_LOOKALIKE}]|[{_LOOKALIKE}][A-Za-z]")
_PHONETIC = re.compile(f"[{_SOUNDS}]")
_MAY_BE_ODD = re.compile(f"[{_DAMAGE}{_OTHER}{_GREEK}{_HIDDEN}{_JOINER}{_LOOKALIKE}{_SOUNDS}]")  # any of these, fast
_MAX_ERROR_CHARS = 16
_CELL_ERROR = re.compile(
    r"#(N/A|REF!|VALUE!|DIV/0!|NAME\?|NULL!|NUM!|SPILL!|CALC!|ERROR!|NV|BEZUG!|WERT!)|NULL|null|None|NaN|nan|<NA>|NaT"
)
_MAY_BE_MARKUP = re.compile(r"[<&\\*_`#\]]")
_MARKUP = (
    (
        re.compile(r"</?[A-Za-z][\w:.-]*(?:\s[^<>]*)?/?>|<!--|<\|[^<>|]*\|>"),
        "text holds markup (SSML, HTML), whose tags are spoken and not obeyed",
    ),
    (
        re.compile(r"&(?:[A-Za-z]{2,8}|#\d{1,7}|#[xX][0-9a-fA-F]{1,6});"),
        "text holds HTML entities, which are spoken as they are written",
    ),
    (
        re.compile(
            r"(\*\*|__|`)\S[^\n]{0,500}?\1|(?<![\w*])\*\w[^*\n]*\*|\[[^\]\n]{1,200}\]\([^)\n]{1,500}\)|(?m:^#{1,6} )"
        ),
        "text holds Markdown, whose signs are spoken",
    ),
    (
        re.compile(r"\\(?:[nrt]|u[0-9a-fA-F]{4})"),
        "text holds escapes written out, as a backslash and an n for a line end",
    ),
)


def has_speech(text: str) -> bool:
    """Whether anything in `text` can be spoken: at least one visible letter or digit."""
    return _SPOKEN.search(text) is not None


def check_text(text: str | None, notes: Notes, where: str) -> None:
    """Raise RowError(empty_text) when there is nothing to speak; note what will probably sound wrong."""
    if text is None or not has_speech(text):
        shown = "text is empty" if text is None else f"text {text[:40]!r} holds no letter or digit"
        raise RowError("empty_text", f"{shown}: there is nothing to speak.")
    if len(text) <= _MAX_ERROR_CHARS and _CELL_ERROR.fullmatch(text.strip()):
        notes.add("text is an error or a null that a program wrote into its cell, and is spoken", where, _short(text))
    if _MAY_BE_MARKUP.search(text):
        for found, sentence in _MARKUP:
            if example := found.search(text):
                notes.add(sentence, where, _short(example[0]))
    if (text.isascii() and text.isprintable()) or not _MAY_BE_ODD.search(text):
        return
    if _DAMAGED.search(text):
        notes.add("text holds control characters or U+FFFD, the mark of a broken encoding", where)
    if _OTHER_SCRIPT.search(text):
        notes.add("text holds a script of none of the ten languages, which often ends in a runaway clip", where)
    if hidden := _INVISIBLE.search(text):
        around = _word_at(text, hidden.start())
        notes.add(
            "text holds invisible characters, which change its tokens and its sound",
            where,
            f"U+{ord(hidden[0]):04X} in {_short(around)}",
        )
    if mixed := _MIXED_WORD.search(text):
        notes.add(
            "text has words of Latin letters with others that look alike, which sound otherwise",
            where,
            _short(_word_at(text, mixed.start())),
        )
    if phonetic := _PHONETIC.search(text):
        notes.add(
            "text holds phonetic symbols, which are spoken as letters", where, _short(_word_at(text, phonetic.start()))
        )


def _word_at(text: str, place: int) -> str:
    start, end = text.rfind(" ", 0, place) + 1, text.find(" ", place)
    return text[start : end if end >= 0 else len(text)]


def _short(example: str) -> str:
    return repr(example if len(example) <= 40 else example[:40] + "…")
