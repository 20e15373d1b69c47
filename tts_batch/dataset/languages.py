"""Language cells: the ten official names and what people type for them."""

from __future__ import annotations

import re
from functools import lru_cache

from tts_batch.dataset.cells import quote
from tts_batch.errors import RowError

_CODES: dict[str, str] = {
    "chinese": "zh zho chi cmn mandarin",
    "english": "en eng",
    "french": "fr fra fre",
    "german": "de deu ger",
    "italian": "it ita",
    "japanese": "ja jpn jp",
    "korean": "ko kor",
    "portuguese": "pt por",
    "russian": "ru rus",
    "spanish": "es spa",
}
LANGUAGES: tuple[str, ...] = tuple(_CODES)
"""The official names, lower case."""

_NAME_OF: dict[str, str] = {code: name for name, codes in _CODES.items() for code in (name, *codes.split())}
# What may follow a code: a script (Hans) or a region (CN, 419). An unknown part, as in zh-yue, is another language.
_TAG = re.compile(r"([a-z]{2,3})(?:[-_](?:hans|hant|latn|cyrl|jpan|kore))?(?:[-_](?:[a-z]{2}|\d{3}))?")


@lru_cache(maxsize=1024)
def parse_language(value: str) -> str | None:
    """Return the official lower-case name, or None for auto. Raises RowError(bad_language) for anything else."""
    wanted = value.strip().casefold()
    if wanted in {"", "auto"}:
        return None
    name = _NAME_OF.get(wanted)
    if name is None and (tag := _TAG.fullmatch(wanted)):
        name = _NAME_OF.get(tag[1])
    if name is None:
        raise RowError("bad_language", _unknown(value, wanted))
    return name


def language_code(name: str) -> str | None:
    """Return the ISO 639-1 code of an official name, "en" of "english"; None of anything else."""
    return _CODES[name].split()[0] if name in _CODES else None


def _unknown(value: str, wanted: str) -> str:
    hint = ""
    if wanted.endswith("_dialect"):
        hint = " A dialect comes with its speaker (eric, dylan) when the language is Chinese or auto."
    allowed = ", ".join(LANGUAGES)
    return f"language {quote(value)} is not one of {allowed}, their ISO codes, or auto.{hint}"
