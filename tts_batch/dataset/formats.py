"""open_table: the reader of a file, by its suffix and, of a text file, by its first lines."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from itertools import islice

from tts_batch.dataset.binary_tables import ArrowTable, ParquetTable
from tts_batch.dataset.columns import is_known
from tts_batch.dataset.files import TableFile
from tts_batch.dataset.json_tables import JsonTable
from tts_batch.dataset.layouts import has_audio_suffix, is_sentence, name_fields, names_by_number
from tts_batch.dataset.tables import Table
from tts_batch.dataset.text_files import TextFile
from tts_batch.dataset.text_lists import separator_of_ids
from tts_batch.dataset.text_tables import CsvTable, UnquotedTable, is_blank

_FIRST_LINES = 200
_SEPARATORS = {".csv": ",;\t|", ".tsv": "\t,;|"}  # the likelier ones first
_SEPARATORS_OF_LISTS = "|\t;,"
_MAX_NAME_CHARS, _MAX_NAME_WORDS = 60, 5


def open_table(file: TableFile, encoding: str | None = None, mapping: Mapping[str, str] | None = None) -> Table:
    """Open `file`. `encoding` is that of text files without a byte order mark; `mapping` is --map.

    Raises UsageError when it cannot be read, or could be read in two ways.
    """
    match file.suffix:
        case ".parquet":
            return ParquetTable(file)
        case ".arrow":
            return ArrowTable(file)
        case ".jsonl" | ".ndjson" | ".json":
            return JsonTable(TextFile(file, encoding))
        case _:
            return _open_text(TextFile(file, encoding), mapping or {})


def _open_text(text: TextFile, mapping: Mapping[str, str]) -> Table:
    suffix, name = text.file.suffix, text.file.name
    lines = [line for _, line in islice(text.lines(), _FIRST_LINES) if not is_blank(line)]
    first = lines[0] if lines else ""
    if declared := re.fullmatch(r'"?sep=(.)"?', first.strip(" ")):  # written by Excel, for Excel
        return CsvTable(text, declared[1], num_skipped=1)
    if _is_json(first):
        return JsonTable(text)
    separator = _separator_of_header(first, mapping, suffix)
    if separator is not None and first.strip() in {"text", *mapping.values()} and suffix not in _SEPARATORS:
        return UnquotedTable(text, None)
    if separator is not None:
        return _split_at(text, separator, lines)
    separator = _separator_of_list(first, suffix)
    if separator is not None:
        fields = [_split(line, separator) for line in lines]
        return _split_at(text, separator, lines, name_fields(fields, separator, mapping, name))
    if suffix in _SEPARATORS:
        return _split_at(text, max(_SEPARATORS[suffix], key=first.count), lines)
    is_named = names_by_number(mapping)
    separator = separator_of_ids(lines, name, is_list=is_named)
    if separator is None:
        return UnquotedTable(text, None, ["text"])
    return UnquotedTable(text, separator, ("field1", "field2") if is_named else ("id", "text"))


def _split_at(text: TextFile, separator: str, lines: Sequence[str], names: Sequence[str] | None = None) -> Table:
    """The table of lines with these fields; `names`: what they are where there is no header."""
    if separator in ",;" or (lines and lines[0].startswith('"')):
        return CsvTable(text, separator, names)
    # Excel's "Unicode text" is UTF-16 with tabs, and quotes as CSV does; its other text quotes fields with commas.
    if separator == "\t" and (text.encoding == "UTF-16" or _is_quoted_for_commas(lines)):
        return CsvTable(text, separator, names)
    return UnquotedTable(text, separator, names)


def _is_quoted_for_commas(lines: Sequence[str]) -> bool:
    """Whether of fields between tabs those in quotes, and no others, hold a comma or a quote."""
    fields = [field for line in lines for field in line.split("\t")]
    quoted = [len(field) > 1 and field[0] == field[-1] == '"' for field in fields]
    return any(quoted) and all(
        is_quoted == ("," in field or '"' in field) for field, is_quoted in zip(fields, quoted, strict=True)
    )


def _is_json(line: str) -> bool:
    if not line.startswith("{"):
        return False
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


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
    if suffix in _SEPARATORS and not {"text", *mapping.values()}.isdisjoint(named):
        return len(known)
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


def _separator_of_list(first: str, suffix: str) -> str | None:
    """Return what separates the fields of a list without a header; None when its lines are whole texts."""
    if "|" in first:
        return "|"
    if suffix not in _SEPARATORS:
        if "\t" in first:
            return "\t"
        return ";" if ";" in first and has_audio_suffix(first.partition(";")[0].strip()) else None
    # In a .csv or a .tsv a first line is a header, if it is not clearly a row.
    for separator in _SEPARATORS[suffix]:
        if _is_row([field.strip() for field in _split(first, separator)]):
            return separator
    return None


def _is_row(fields: Sequence[str]) -> bool:
    """Whether fields can hardly be a header: there is a file, or an id beside a sentence."""
    if len(fields) < 2 or any(map(has_audio_suffix, fields)):
        return len(fields) > 1
    has_id = any(len(field.split()) == 1 and re.search(r"\d", field) for field in fields)
    return has_id and any(map(is_sentence, fields))


def _split(line: str, separator: str) -> list[str]:
    if separator not in ",;" and not line.startswith('"'):
        return line.split(separator)
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return line.split(separator)
