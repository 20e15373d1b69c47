"""Lists without a header: which field is what, by the content of the fields, as twelve toolkits write them.

A list that fits two layouts, or none, is refused: the wrong column must never be spoken.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath

from tts_batch.dataset.columns import AUDIO_SUFFIXES
from tts_batch.dataset.languages import parse_language
from tts_batch.errors import RowError, UsageError


@dataclass(frozen=True, slots=True)
class Layout:
    """What the fields of a list are. `kinds` has a letter for each: see `_fits`."""

    kinds: str
    names: tuple[str, ...]
    tools: str


LAYOUTS: tuple[Layout, ...] = (
    Layout("Ft", ("id", "text"), "LJSpeech, VITS, Matcha-TTS"),
    Layout("RT", ("speaker_id", "text"), "dialogues"),
    Layout("TR", ("text", "speaker_id"), ""),
    Layout("TA", ("text", "id"), ""),
    Layout("FTN", ("id", "written_text", "text"), "LJSpeech"),  # the third is the text as it is spoken
    Layout("FST", ("id", "speaker_id", "text"), "VITS, Piper"),
    Layout("FTS", ("id", "text", "speaker_id"), "StyleTTS2, Tacotron 2"),
    Layout("FLT", ("id", "language", "text"), ""),
    Layout("FTL", ("id", "text", "language"), ""),
    Layout("FSLT", ("id", "speaker_id", "language", "text"), "GPT-SoVITS, MeloTTS"),
    Layout("FTSL", ("id", "text", "speaker_id", "language"), ""),
    Layout("FSTL", ("id", "speaker_id", "text", "language"), ""),
    Layout("FSPT", ("id", "speaker_id", "phones", "text"), "FastSpeech 2"),
    Layout("FtAT", ("id", "ref_text", "ref_audio", "text"), "Seed-TTS"),
    Layout("FtATA", ("id", "ref_text", "ref_audio", "text", "wav"), "Seed-TTS"),
    Layout("FSLT_##", ("id", "speaker_id", "language", "text", "phones", "tones", "word2ph"), "Bert-VITS2"),
)
_FIELD_NAME = re.compile(r"field([1-9]\d*)")
_UNSPACED_SCRIPT = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{5}")  # names are shorter
_SENTENCE_END = (".", "!", "?", "…", ",", ";", ":", "。", "！", "？", "，", "、")
_NUMBERS = re.compile(r"-?\d+( -?\d+)*")
_LETTER = re.compile(r"[^\W\d_]")
_ARPABET = re.compile(r"([A-Z]{1,2}[0-2]?|sp|sil|spn|pau)( ([A-Z]{1,2}[0-2]?|sp|sil|spn|pau))*")
_MANY = 5  # rows, of which names of speakers come again
_DIGIT = re.compile(r"\d")
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_]+")


def name_fields(
    lines: Sequence[Sequence[str]], separator: str, mapping: Mapping[str, str], table: str
) -> tuple[str, ...]:
    """Return the column names of a list without a header, from the fields of its first lines.

    With `--map NAME=fieldN` the columns are field1, field2, …. Raises UsageError when the content fits two layouts, or
    none.
    """
    num_fields = Counter(map(len, lines)).most_common(1)[0][0]
    if names_by_number(mapping):
        return tuple(f"field{place}" for place in range(1, num_fields + 1))
    whole = [fields for fields in lines if len(fields) == num_fields]
    columns = [FieldContent([value.strip() for value in values]) for values in zip(*whole, strict=True)]
    filled = [column for column in columns if any(column.values)]  # a column without a value is none
    possible = [layout for layout in LAYOUTS if len(layout.kinds) == len(filled)]
    fitting = [layout for layout in possible if _fit(layout, filled)]
    if len(fitting) != 1:
        raise UsageError(_ambiguous(fitting or possible, separator.join(whole[0]), num_fields, table))
    names = iter(fitting[0].names)
    return tuple(next(names) if any(column.values) else "" for column in columns)


def names_by_number(mapping: Mapping[str, str]) -> bool:
    """Whether `--map` names fields by their numbers, as in text=field2."""
    return any(_FIELD_NAME.fullmatch(column) for column in mapping.values())


class FieldContent:
    """What one field is over the first lines."""

    def __init__(self, values: Sequence[str]) -> None:
        self.values = values

    def _share(self, count: int) -> float:
        return count / len(self.values)

    @cached_property
    def is_audio(self) -> bool:
        return self._share(sum(has_audio_suffix(value) for value in self.values)) >= 0.9

    @cached_property
    def is_sentence(self) -> bool:
        """Whether half of the values can hardly be names: they have three words, or end as sentences do."""
        return not self.is_audio and self._share(sum(map(is_sentence, self.values))) >= 0.5

    @cached_property
    def is_language(self) -> bool:
        return all(map(_is_language, self.values))

    @cached_property
    def is_number(self) -> bool:
        return all(value.isdecimal() for value in self.values)

    @cached_property
    def has_spaces(self) -> bool:
        return any(len(value.split(maxsplit=1)) > 1 for value in self.values)

    @cached_property
    def has_digits(self) -> bool:
        return all(map(_DIGIT.search, self.values))

    @cached_property
    def is_numbers(self) -> bool:
        return all(map(_NUMBERS.fullmatch, self.values))

    @cached_property
    def is_phones(self) -> bool:
        """Whether they are phonemes as ARPAbet has them, in braces or with a stress."""
        return all(value.startswith("{") and value.endswith("}") for value in self.values) or (
            all(map(_ARPABET.fullmatch, self.values)) and any(map(_DIGIT.search, self.values))
        )

    @cached_property
    def is_varied(self) -> bool:
        """Whether every row has another word, as names of speakers do not."""
        return len(self.values) >= _MANY and len(set(self.values)) == len(self.values) and not self.has_digits

    @cached_property
    def repeats(self) -> bool:
        """Whether few values come again and again, as ids do not."""
        return len(set(self.values)) <= len(self.values) / 2


def has_audio_suffix(value: str) -> bool:
    """Whether `value` is a path with the suffix of an audio file."""
    return PurePath(value).suffix.casefold() in AUDIO_SUFFIXES


def _fit(layout: Layout, columns: Sequence[FieldContent]) -> bool:
    if not all(map(_fits, layout.kinds, columns)):
        return False
    if layout.kinds == "Ft" and not columns[0].is_audio and not columns[1].is_sentence:
        return _is_id_beside(*columns)
    return "N" not in layout.kinds or _share_words(columns[1].values, columns[2].values)


def _fits(kind: str, field: FieldContent) -> bool:
    """Whether a field can be of a kind."""
    match kind:
        case "F":  # an audio file, or an id
            return field.is_audio or not (field.is_sentence or field.has_spaces or field.repeats)
        case "A":  # an audio file
            return field.is_audio
        case "R":  # a speaker who speaks again
            return field.repeats and not field.is_audio and not field.is_sentence
        case "S":  # a speaker
            return not (field.is_audio or field.is_language or field.is_sentence or field.is_varied)
        case "L":
            return field.is_language
        case "P":
            return field.is_phones
        case "#":
            return field.is_numbers
        case "T" | "N":  # text, and the same text as it is spoken
            return field.is_sentence and not field.is_phones
        case "t":  # text, or the words that are in its place
            return not (field.is_audio or field.is_phones or field.is_numbers)
        case _:
            return True


def _is_id_beside(field: FieldContent, word: FieldContent) -> bool:
    """Whether of a field and a word the first is an id: it has digits, and the second has none."""
    return field.has_digits and not word.is_number and (field.is_number or not word.has_digits)


def is_sentence(value: str) -> bool:
    """Whether `value` can hardly be a name: it has three words, or ends as sentences do."""
    has_words = (len(value.split(maxsplit=2)) > 2 and _LETTER.search(value) is not None) or _UNSPACED_SCRIPT.search(
        value
    ) is not None
    return has_words or value.endswith(_SENTENCE_END)


def _is_language(value: str) -> bool:
    try:
        return value.casefold() == "yue" or parse_language(value) is not None
    except RowError:
        return False


def _share_words(ones: Sequence[str], others: Sequence[str]) -> bool:
    """Whether half of the pairs have a third of their words in common, as two spellings of one sentence have."""
    pairs = [(_words(one), _words(other)) for one, other in zip(ones, others, strict=True)]
    same = sum(3 * len(one & other) >= max(min(len(one), len(other)), 1) for one, other in pairs)
    return same >= len(pairs) / 2


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.casefold()))


def _ambiguous(layouts: Sequence[Layout], line: str, num_fields: int, table: str) -> str:
    shown = line if len(line) <= 80 else line[:80] + "…"
    readings = " or ".join(
        "|".join(layout.names) + (f" (as {layout.tools})" if layout.tools else "") for layout in layouts
    )
    could = f"and could be {readings}" if readings else "which is no list of a known toolkit"
    count = "1 field" if num_fields == 1 else f"{num_fields} fields"
    return (
        f"{table} has no header and {count} a line, {could}: {shown!r}. Write a header as its first line, or name the "
        "text and the other columns, as in --map text=field2."
    )
