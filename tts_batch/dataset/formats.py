"""open_table: the reader of a file, by its suffix and, of a text file, by its first lines."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from itertools import islice

from tts_batch.dataset.binary_tables import ArrowTable, ParquetTable
from tts_batch.dataset.columns import is_known
from tts_batch.dataset.files import TableFile
from tts_batch.dataset.layouts import has_audio_suffix, name_fields
from tts_batch.dataset.tables import Table
from tts_batch.dataset.text_files import TextFile
from tts_batch.dataset.text_tables import CsvTable, JsonLinesTable, UnquotedTable
from tts_batch.errors import UsageError

_FIRST_LINES = 200
_SEPARATORS = {".csv": ",;\t|", ".tsv": "\t,;|"}  # the likelier ones first
_SEPARATORS_OF_LISTS = "|\t;,"
_MAX_NAME_CHARS, _MAX_NAME_WORDS = 60, 5
_KALDI_ID = re.compile(r"(?=\S*\d)(?=\S*[A-Za-z])[\w.-]{6,}")


def open_table(file: TableFile, encoding: str | None = None, mapping: Mapping[str, str] | None = None) -> Table:
    """Open `file`. `encoding` is that of text files without a byte order mark; `mapping` is --map.

    Raises UsageError when it cannot be read, or could be read in two ways.
    """
    match file.suffix:
        case ".parquet":
            return ParquetTable(file)
        case ".arrow":
            return ArrowTable(file)
        case ".jsonl" | ".json":
            return JsonLinesTable(TextFile(file, encoding))
        case _:
            return _open_text(TextFile(file, encoding), mapping or {})


def _open_text(text: TextFile, mapping: Mapping[str, str]) -> Table:
    suffix = text.file.suffix
    lines = [line for _, line in islice(text.lines(), _FIRST_LINES)]
    first = lines[0] if lines else ""
    if declared := re.fullmatch(r'"?sep=(.)"?', first.strip(" ")):  # written by Excel, for Excel
        return CsvTable(text, declared[1], num_skipped=1)
    separator = _separator_of_header(first, mapping, suffix)
    if separator is not None and first.strip() in {"text", *mapping.values()} and suffix not in _SEPARATORS:
        return UnquotedTable(text, None)
    if separator is not None:
        return _with_header(text, first, separator)
    separator = _separator_of_list(lines, suffix)
    if separator is not None:
        fields = [line.split(separator) for line in lines]
        return UnquotedTable(text, separator, name_fields(fields, separator, mapping, text.file.name))
    if suffix in _SEPARATORS:
        return _with_header(text, first, max(_SEPARATORS[suffix], key=first.count))
    _refuse_hidden_fields(lines, text.file.name)
    return UnquotedTable(text, None, ["text"])


def _with_header(text: TextFile, first: str, separator: str) -> Table:
    if separator in ",;" or (separator == "\t" and (text.encoding == "UTF-16" or first.startswith('"'))):
        return CsvTable(text, separator)  # Excel's "Unicode text" is UTF-16 with tabs, and quotes as CSV does
    return UnquotedTable(text, separator)


def _separator_of_header(first: str, mapping: Mapping[str, str], suffix: str) -> str | None:
    """Return what separates the names of a header; None when the first line is none."""
    found = None
    most = 0
    for separator in _SEPARATORS.get(suffix, _SEPARATORS_OF_LISTS):
        fields = [field.strip() for field in _split(first, separator)]
        num_known = _num_known(fields, mapping, suffix, separator)
        if num_known > most:
            found, most = separator, num_known
    return found


def _num_known(fields: Sequence[str], mapping: Mapping[str, str], suffix: str, separator: str) -> int:
    """Return how many of `fields` are names that we know; 0 when they can hardly be a header."""
    named = [field for field in fields if field]
    known = [field for field in named if is_known(field) or field in mapping.values()]
    if any(has_audio_suffix(field) for field in named):
        return 0
    if len(known) == len(named) == 1:
        return int(known == ["text"] or suffix in _SEPARATORS or known[0] in mapping.values())
    if len(known) >= 2:
        return len(known)
    # In a sentence, too, there may be the word "text" before a comma.
    is_likely = suffix in _SEPARATORS or separator in "|\t"
    return len(known) if is_likely and all(map(_is_name, named)) else 0


def _is_name(field: str) -> bool:
    """Whether `field` can be the name of a column: no number, no sentence."""
    if len(field) > _MAX_NAME_CHARS or len(field.split()) > _MAX_NAME_WORDS or "|" in field:
        return False
    return not field.isdecimal() and not field.endswith((".", "!", "?", "。", "！", "？"))


def _separator_of_list(lines: Sequence[str], suffix: str) -> str | None:
    """Return what separates the fields of a list without a header; None when its lines are whole texts."""
    first = lines[0] if lines else ""
    if "|" in first:
        return "|"
    if "\t" in first:  # in a .tsv a first line is a header, if it is not clearly a row
        return "\t" if suffix not in _SEPARATORS or has_audio_suffix(first.split("\t")[0].strip()) else None
    if ";" in first and has_audio_suffix(first.split(";")[0].strip()):
        return ";"
    return None


def _refuse_hidden_fields(lines: Sequence[str], name: str) -> None:
    """Raise UsageError for lines that look like texts and begin with an id or a file, which would be spoken."""
    for separator in (",", None):
        starts = [(line.split(separator, 1) or [""])[0].strip() for line in lines]
        is_list = all(map(has_audio_suffix, starts)) or (
            separator is None
            and len(lines) > 2
            and len(set(starts)) == len(starts)
            and all(map(_KALDI_ID.fullmatch, starts))
        )
        if starts and is_list:
            raise UsageError(
                f"{name} could be lines of text, or of an id and a text as in {lines[0][:80]!r}: write the line 'text' "
                "before them if all of a line is to be spoken, or else separate the fields with | or tabs."
            )


def _split(line: str, separator: str) -> list[str]:
    if separator not in ",;" and not line.startswith('"'):
        return line.split(separator)
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return line.split(separator)
