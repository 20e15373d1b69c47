"""Text cells: whether there is anything to speak, and signs of damage.

Text is never rewritten here: what the table says is what the tokenizer gets.
"""

from __future__ import annotations

import re

from tts_batch.dataset.notes import Notes
from tts_batch.errors import RowError

# A letter or digit, but no Hangul filler: those are letters by category, yet drawn as nothing.
_SPOKEN = re.compile("[^\\W_\u115f\u1160\u3164\uffa0]")
_DAMAGED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffd]")
# Letters of scripts that none of the ten languages uses. Two Greek letters in a row, since one is often a symbol.
_OTHER_SCRIPT = re.compile(
    "[\u0370-\u03ff]{2}|[\u0530-\u10ff\u1200-\u1c7f\u2c00-\u2c5f\ua4d0-\ua63f\ua800-\ua95f\ua980-\uabff\ufb1d-\ufdff\ufe70-\ufefc]"
)


def has_speech(text: str) -> bool:
    """Whether anything in `text` can be spoken: at least one visible letter or digit."""
    return _SPOKEN.search(text) is not None


def check_text(text: str | None, notes: Notes, where: str) -> None:
    """Raise RowError(empty_text) when there is nothing to speak; note what will probably sound wrong."""
    if text is None or not has_speech(text):
        shown = "text is empty" if text is None else f"text {text[:40]!r} holds no letter or digit"
        raise RowError("empty_text", f"{shown}: there is nothing to speak.")
    if text.isascii() and text.isprintable():
        return
    if _DAMAGED.search(text):
        notes.add("text holds control characters or U+FFFD, the mark of a broken encoding", where)
    if _OTHER_SCRIPT.search(text):
        notes.add("text holds a script of none of the ten languages, which often ends in a runaway clip", where)
