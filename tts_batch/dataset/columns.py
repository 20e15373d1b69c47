"""Which of a table's columns is which of ours: --map, aliases, near misses, and what is carried through."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import PurePath
from typing import Any

from tts_batch.dataset.cells import printable
from tts_batch.dataset.notes import Notes
from tts_batch.dataset.speakers import PRESET_SPEAKERS, normalise_speaker
from tts_batch.errors import UsageError

COLUMNS: tuple[str, ...] = (
    "id",
    "text",
    "language",
    "speaker",
    "instruct",
    "ref_audio",
    "ref_text",
    "ref_offset",
    "ref_duration",
    "x_vector_only",
    "seed",
    "task",
    "non_streaming",
    "max_frames",
)

# Names that other tools use and that can mean only one thing.
ALIASES: dict[str, tuple[str, ...]] = {
    "id": ("utt", "utt_id", "utterance_id", "custom_id", "key", "__key__"),
    "text": ("input", "sentence", "transcript", "transcription", "normalized_text", "gen_text", "gt_text", "lines"),
    "language": ("lang", "lang_code", "language_type", "language_idx"),
    "speaker": ("speaker_idx", "speaker_name"),
    "instruct": ("instructions", "instruction"),
    "ref_audio": ("prompt_wav", "prompt_audio", "speaker_wav", "audio_prompt", "audio_prompt_path", "ref_wav"),
    "ref_text": ("prompt_text", "ref_transcript"),
    "x_vector_only": ("x_vector_only_mode", "xvec_only"),
}
_OURS_OF_ALIAS: dict[str, str] = {alias: ours for ours, aliases in ALIASES.items() for alias in aliases}

AMBIGUOUS: tuple[str, ...] = ("voice", "speaker_id")
"""A preset's name to some tools, a recording's path or a number to others: read by content."""

_OF_A_REFERENCE = frozenset({"ref_offset", "ref_duration"})
_TALKER_SAMPLING = ("temperature", "top_k", "top_p", "repetition_penalty", "max_new_tokens", "max_tokens")
_SAMPLING = frozenset((*_TALKER_SAMPLING, "subtalker_temperature", "subtalker_top_k", "subtalker_top_p"))
AUDIO_SUFFIXES = frozenset(
    {".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".m4a", ".m4b", ".mp4", ".aac", ".wma", ".webm", ".mka", ".amr"}
    | {".aif", ".aiff", ".au", ".caf", ".sph", ".w64", ".wv"}
)


@dataclass(frozen=True, slots=True)
class ColumnMap:
    """How to read one table. `ours` maps our names to the table's; every other column is in `extras`."""

    ours: Mapping[str, str]
    extras: tuple[str, ...]


def is_known(name: str) -> bool:
    """Whether `name` is, loosely spelt, one of our columns or an alias of one."""
    loose = loosely(name)
    return loose in COLUMNS or loose in _OURS_OF_ALIAS or loose in AMBIGUOUS


def meaning_of(name: str) -> str:
    """Return our column that `name` is, loosely spelt or as an alias, or else `name` as names are compared."""
    loose = loosely(name)
    return _OURS_OF_ALIAS.get(loose, loose)


def check_mapping(mapping: Mapping[str, str]) -> None:
    """Raise UsageError when --map names a column that we do not have."""
    for name in mapping:
        if name not in COLUMNS:
            raise UsageError(f"--map {name}={mapping[name]}: {name!r} is not one of {', '.join(COLUMNS)}.")


def map_columns(
    names: Collection[str],
    mapping: Mapping[str, str],
    *,
    sample: Mapping[str, Any],
    strict: bool,
    table: str,
    notes: Notes,
) -> ColumnMap:
    """Resolve a table's column `names`.

    `sample` holds a first value for the names in AMBIGUOUS. `--map NAME=` (nothing) says that no column is NAME.
    Raises UsageError for a mapped column that is not there, no text column, two columns that could both be the
    text, and under `strict` for every unknown column.
    """
    ours = _mapped(names, mapping, table)
    taken = set(ours.values())
    free = [name for name in names if name not in taken]
    off = {name for name, column in mapping.items() if not column}
    _take_known(free, ours, off, table, notes)
    _take_ambiguous(free, ours, off, sample, notes)
    _take_segment(names, ours, off, notes)
    taken = set(ours.values())
    extras = tuple(name for name in names if name not in taken)
    if "text" not in ours:
        raise UsageError(_no_text(names, table))
    note_unknown(extras, ours, strict=strict, table=table, notes=notes)
    return ColumnMap(ours, extras)


def _mapped(names: Collection[str], mapping: Mapping[str, str], table: str) -> dict[str, str]:
    for name, column in mapping.items():
        if column and column not in names:
            raise UsageError(
                f"--map {name}={printable(column)}: {table} has no column {column!r}; it has {_listed(names)}."
            )
    return {name: column for name, column in mapping.items() if column}


def _take_known(free: Iterable[str], ours: dict[str, str], off: set[str], table: str, notes: Notes) -> None:
    """Own names first, then own names spelt loosely, then aliases: an own name leaves its aliases to be extras."""
    found: list[dict[str, list[str]]] = [{}, {}, {}]
    for name in free:
        loose = loosely(name)
        rank, meaning = (
            (0, name) if name in COLUMNS else (1, loose) if loose in COLUMNS else (2, _OURS_OF_ALIAS.get(loose))
        )
        if meaning is not None and meaning not in off:
            found[rank].setdefault(meaning, []).append(name)
    for by_meaning in found:
        for meaning, candidates in by_meaning.items():
            if meaning in ours:
                continue
            if len(candidates) == 1:
                ours[meaning] = candidates[0]
                continue
            both = " and ".join(map(repr, candidates))
            sentence = (
                f"{table}: {both} could each be the {meaning}; choose with --map {meaning}={printable(candidates[0])}"
            )
            if meaning == "text":
                raise UsageError(sentence + ".")
            notes.add(sentence + ". None is used.")


def _take_ambiguous(
    free: Iterable[str], ours: dict[str, str], off: set[str], sample: Mapping[str, Any], notes: Notes
) -> None:
    for name in free:
        if loosely(name) not in AMBIGUOUS:
            continue
        meaning = _meaning_by_content(sample.get(name))
        if meaning is None or meaning in ours or meaning in off:
            shown = printable(name)
            notes.add(
                f"column {name!r} is not used: say what it is with --map speaker={shown} or --map ref_audio={shown}"
            )
        else:
            ours[meaning] = name
            notes.add(f"column {name!r} is read as {meaning}, by its content")


def _take_segment(names: Collection[str], ours: dict[str, str], off: set[str], notes: Notes) -> None:
    """Take `offset`, and `duration` beside it, as NeMo means them: where in the recording that is cloned to look.

    A `duration` alone says how long some recording is, not which part of it is meant.
    """
    if "ref_audio" not in ours or "ref_offset" in ours or "ref_offset" in off:
        return
    named = {loosely(name): name for name in names if name not in ours.values()}
    if "offset" in named:
        ours["ref_offset"] = named["offset"]
        if "duration" in named and "ref_duration" not in off:
            ours.setdefault("ref_duration", named["duration"])
        columns = " and ".join(repr(ours[name]) for name in ("ref_offset", "ref_duration") if name in ours)
        notes.add(f"{columns} give the part of ref_audio that is cloned, in seconds; --map ref_offset= leaves it whole")


def _meaning_by_content(value: Any) -> str | None:
    if isinstance(value, bytes | dict):
        return "ref_audio"
    if not isinstance(value, str):
        return None
    if normalise_speaker(value) in PRESET_SPEAKERS:
        return "speaker"
    return "ref_audio" if PurePath(value).suffix.casefold() in AUDIO_SUFFIXES else None


def note_unknown(extras: Iterable[str], ours: Mapping[str, str], *, strict: bool, table: str, notes: Notes) -> None:
    """Note the columns that are not ours, where their names are near ours; under `strict` raise UsageError."""
    if strict and extras:
        listed = ", ".join(_with_hint(name, ours) for name in extras)
        raise UsageError(f"{table}: unknown column {listed}; the known ones are {', '.join(COLUMNS)}.")
    for name in extras:
        near = _near_miss(name, ours)
        if near and (near not in _OF_A_REFERENCE or "ref_audio" in ours):  # every NeMo manifest has a "duration"
            notes.add(f"column {name!r} is not used; did you mean {near!r}? (--map {near}={printable(name)} uses it)")
        elif loosely(name) in _SAMPLING:
            notes.add(f"column {name!r} is carried through but not used: sampling is set for the whole run")


def _with_hint(name: str, ours: Mapping[str, str]) -> str:
    if loosely(name) in _SAMPLING:
        return f"{name!r} (sampling is set for the whole run)"
    near = _near_miss(name, ours)
    return f"{name!r} (did you mean {near!r}?)" if near else repr(name)


def _near_miss(name: str, ours: Mapping[str, str]) -> str | None:
    if loosely(name) in AMBIGUOUS:  # which is noted as such
        return None
    return next((column for column in _near(loosely(name)) if column not in ours), None)


@lru_cache(maxsize=4096)
def _near(name: str) -> tuple[str, ...]:
    return tuple(difflib.get_close_matches(name, COLUMNS, n=len(COLUMNS), cutoff=0.8))


def _no_text(names: Collection[str], table: str) -> str:
    near = next((name for name in names if _near_miss(name, {}) == "text"), "COLUMN")
    return f"{table} has no column 'text'; it has {_listed(names)}. Name it with --map text={printable(near)}."


def _listed(names: Collection[str]) -> str:
    shown = [printable(name if len(name) <= 80 else name[:80] + "…") for name in islice(names, 20)]
    return ", ".join(shown) + (f" and {len(names) - 20} more" if len(names) > 20 else "") if names else "none"


def loosely(name: str) -> str:
    """Return a name as names are compared: "Ref Text" and "ref-text" are ref_text."""
    return name.strip().casefold().replace("-", "_").replace(" ", "_")
