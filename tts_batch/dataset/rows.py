"""read_rows: tables to checked Rows, one after another, in input order, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from tts_batch.config import JobConfig
from tts_batch.dataset.carried import carried, encodable
from tts_batch.dataset.cells import MAX_SEED, is_empty, parse_flag, parse_seconds, parse_string, parse_task, parse_whole
from tts_batch.dataset.columns import (
    AMBIGUOUS,
    COLUMNS,
    ColumnMap,
    check_mapping,
    is_known,
    loosely,
    map_columns,
    meaning_of,
    note_unknown,
)
from tts_batch.dataset.files import HIVE_NULL, find_tables
from tts_batch.dataset.formats import open_table
from tts_batch.dataset.ids import IdRegister, parse_id
from tts_batch.dataset.languages import parse_language
from tts_batch.dataset.notes import Notes
from tts_batch.dataset.ref_cells import RefCells, cut
from tts_batch.dataset.segments import Segment
from tts_batch.dataset.speakers import normalise_speaker
from tts_batch.dataset.spoken_text import check_text
from tts_batch.dataset.tables import RawRow, Table
from tts_batch.dataset.types import SeenTypes, is_time
from tts_batch.errors import RowError, UsageError
from tts_batch.records import Failure, RefAudio, Row

if TYPE_CHECKING:
    from tts_batch.dataset.fetch import Fetcher

_FETCHES = 16  # at a time
_MAX_FRAMES = 2**31 - 1  # the model's own limit is the planner's business


def read_rows(
    config: JobConfig, notes: Notes | None = None, *, with_extras: bool = True, fetcher: Fetcher | None = None
) -> Iterator[Row]:
    """Yield every row of `config.data`, failed ones too: the same rows in the same order each time.

    `notes` collects what a user should know. `with_extras=False` leaves the columns unread that are only carried
    through. `fetcher` gets the references that are URLs, several at a time; without one they are refused. Raises
    UsageError for a table or a setting that cannot be used.
    """
    tables = (open_table(file, config.encoding, config.map) for file in find_tables(config.data))
    ahead = _FETCHES if fetcher else 0
    rows = read_tables(tables, config, notes or Notes(), with_extras=with_extras, fetcher=fetcher, ahead=ahead)
    return islice(rows, config.limit)


def read_tables(
    tables: Iterable[Table],
    config: JobConfig,
    notes: Notes,
    *,
    with_extras: bool,
    fetcher: Fetcher | None = None,
    ahead: int = 0,
) -> Iterator[Row]:
    """Yield the rows of open tables as `read_rows` does, with `config`'s mapping and defaults.

    URLs are fetched from `ahead` rows before the one that is yielded.
    """
    check_mapping(config.map)
    default_language = _default_language(config)
    register = IdRegister()
    seen_types = SeenTypes(notes)
    row_index = 0
    for table in tables:
        reader = _RowReader(config, default_language, table, register, notes, with_extras, fetcher)
        seen_types.add(table, reader.extras)
        for raw in _look_ahead(table.rows(reader.wanted), reader.start_fetching, ahead):
            yield reader.row(raw, row_index)
            row_index += 1


def _look_ahead(raws: Iterable[RawRow], see: Callable[[RawRow], None], count: int) -> Iterator[RawRow]:
    """Yield `raws`, each after `see` has seen the `count` that follow it."""
    waiting: deque[RawRow] = deque()
    for raw in raws:
        see(raw)
        waiting.append(raw)
        if len(waiting) > count:
            yield waiting.popleft()
    yield from waiting


def _default_language(config: JobConfig) -> str | None:
    try:
        return parse_language(config.language or "")
    except RowError as error:
        raise UsageError(f"--language: {error.message}") from error


class _RowReader:
    """Turns the raw rows of one table into Rows. The first thing found wrong with a row is its failure."""

    def __init__(
        self,
        config: JobConfig,
        default_language: str | None,
        table: Table,
        register: IdRegister,
        notes: Notes,
        with_extras: bool,
        fetcher: Fetcher | None,
    ) -> None:
        self._config = config
        self._default_language = default_language
        self._default_speaker = normalise_speaker(config.speaker or "") or None
        self._default_instruct = config.instruct if not is_empty(config.instruct) else None
        self._table = table
        self._register = register
        self._notes = notes
        self._with_extras = with_extras
        self._refs = RefCells(table.file.folder, config.audio_root, fetcher, table.file.folder_url)
        self._folder_values = table.file.partitions
        self._check_folders(table.columns)
        self._names = dict.fromkeys((*table.columns, *self._folder_values))
        self._audio_columns = table.audio_columns
        self._columns = self._map_columns()
        for remark in table.form.remarks:
            notes.add(f"{table.file.name}: {remark}")
        for folder in table.file.ignored_folders:
            notes.add(f"the folder {folder!r} is not a column: a folder without '=' is between it and the files")

    @property
    def extras(self) -> tuple[str, ...]:
        """The table's columns that are only carried through."""
        return self._columns.extras

    @property
    def wanted(self) -> tuple[str, ...]:
        """The file's columns to read."""
        names = (*self._columns.ours.values(), *(self.extras if self._with_extras else self._times))
        return tuple(name for name in names if name not in self._folder_values)

    def start_fetching(self, raw: RawRow) -> None:
        """Begin to fetch what the row's reference names, if that is a URL."""
        if "ref_audio" in self._columns.ours:
            name = self._columns.ours["ref_audio"]
            self._refs.start(raw.cells.get(name, self._folder_values.get(name)))

    def row(self, raw: RawRow, row_index: int) -> Row:
        source = f"{self._table.file.name}:{raw.number}"
        if raw.problem is not None:
            return Row(row_index, self._register.derive(raw.problem), source, failure=Failure("bad_row", raw.problem))
        raw_cells: Mapping[str, Any] = raw.cells
        if not raw_cells.keys() <= self._names.keys():  # a JSON line with a key that none had so far
            self._add_columns([name for name in raw_cells if name not in self._names])
        if self._folder_values:
            self._check_folders(raw_cells)
            raw_cells = {**self._folder_values, **raw_cells}
        for name in self._times:
            if isinstance(raw_cells.get(name), str):
                self._notes.add(
                    f"column {name!r} holds times that few readers know (out of range, or of an unknown zone): they "
                    "are carried through as text",
                    source,
                )
        cells = {ours: raw_cells[name] for ours, name in self._columns.ours.items() if name in raw_cells}
        values, failure = self._parse(cells, source)
        row_id, failure = self._identify(cells, values, failure, row_index, source)
        self._fill_defaults(values)
        return Row(row_index, row_id, source, **values, extras=self._extras(raw_cells), failure=failure)

    def _parse(self, cells: Mapping[str, Any], source: str) -> tuple[dict[str, Any], Failure | None]:
        """Parse every cell but the id. A cell that cannot be parsed is left out, so the row keeps all the others."""
        values: dict[str, Any] = {}
        failure: Failure | None = None
        for name, cell in cells.items():
            if name == "id":
                continue
            try:
                if name == "ref_audio":
                    value: Any = self._refs.parse(cell)
                else:
                    value = _PARSERS[name](cell)
                if value is not None:
                    values[name] = value
                if name == "text":
                    check_text(value, self._notes, source)
            except RowError as error:
                failure = failure or Failure(error.reason, error.message)
        if "text" not in cells:
            failure = failure or Failure("empty_text", "the row has no text.")
        offset, duration = values.pop("ref_offset", None), values.pop("ref_duration", None)
        if "ref_audio" in values and (offset or duration is not None):
            end = None if duration is None else (offset or 0.0) + duration
            try:
                values["ref_audio"] = cut(values["ref_audio"], Segment(offset or 0.0, end))
            except RowError as error:
                failure = failure or Failure(error.reason, error.message)
        return values, failure

    def _identify(
        self,
        cells: Mapping[str, Any],
        values: Mapping[str, Any],
        failure: Failure | None,
        row_index: int,
        source: str,
    ) -> tuple[str, Failure | None]:
        row_id = ""
        try:
            row_id = parse_id(cells["id"], self._notes, source) if "id" in cells else ""
        except RowError as error:  # the derived id below still identifies the row
            failure = Failure(error.reason, error.message)
        row_id = row_id or self._register.derive(_content(cells, values.get("ref_audio")))
        try:
            self._register.claim(row_id, row_index)
        except RowError as error:
            failure = failure or Failure(error.reason, error.message)
        return row_id, failure

    def _fill_defaults(self, values: dict[str, Any]) -> None:
        """Fill what the row leaves open, where its task has a use for it: a clone takes no preset and no style."""
        if self._default_language is not None:
            values.setdefault("language", self._default_language)
        if values.get("task") != "base" and "ref_audio" not in values:
            if self._default_speaker is not None and values.get("task") != "voice_design":
                values.setdefault("speaker", self._default_speaker)
            if self._default_instruct is not None:
                values.setdefault("instruct", self._default_instruct)
        for name in ("x_vector_only", "non_streaming"):
            default = getattr(self._config, name)
            if default is not None:
                values.setdefault(name, default)

    def _extras(self, cells: Mapping[str, Any]) -> dict[str, Any]:
        if not self._with_extras:
            return {}
        return {encodable(name): carried(cells[name]) for name in self._columns.extras if name in cells}

    def _check_folders(self, columns: Iterable[str]) -> None:
        """Raise UsageError for a column that a folder above the file is named after, too, or another folder."""
        if not self._folder_values:
            return
        seen = {self._meaning(name): f"the column {name!r}" for name in columns}
        for name in self._folder_values:
            meaning, folder = self._meaning(name), f"the folder {self._folder(name)!r}"
            if meaning in seen:
                raise UsageError(
                    f"{self._table.file.name} has {seen[meaning]}, and {folder} above it is a column of that name, "
                    "too: rename one of them."
                )
            seen[meaning] = folder

    def _meaning(self, name: str) -> str:
        meaning = meaning_of(name)
        return loosely(name) if meaning in self._config.map else meaning  # --map says which of them it is

    def _folder(self, name: str) -> str:
        value = self._folder_values[name]
        return f"{name}={HIVE_NULL if value is None else value}"

    def _add_columns(self, names: list[str]) -> None:
        """Take columns that came up late. Most are only carried through, which changes nothing for the others."""
        self._names |= dict.fromkeys(names)
        if any(is_known(name) for name in names) or self._config.strict:
            self._columns = self._map_columns()
            return
        note_unknown(names, self._columns.ours, strict=False, table=self._table.file.name, notes=self._notes)
        self._columns = ColumnMap(self._columns.ours, (*self._columns.extras, *names))

    def _map_columns(self) -> ColumnMap:
        table, config = self._table, self._config
        unclear = [name for name in self._names if loosely(name) in AMBIGUOUS]
        sample = dict(table.sample([name for name in unclear if name not in self._folder_values])) if unclear else {}
        columns = map_columns(
            self._names,
            config.map,
            sample=self._folder_values | sample,
            strict=config.strict,
            table=table.file.name,
            notes=self._notes,
        )
        for name in self._audio_columns & set(columns.extras):
            self._notes.add(f"column {name!r} holds bytes or recordings and is not carried through")
        self._notes.add_table(table.file.name, table.form, self._shown(columns))
        self._times = [name for name in columns.extras if name in table.types and is_time(table.types[name])]
        return ColumnMap(columns.ours, tuple(name for name in columns.extras if name not in self._audio_columns))

    def _shown(self, columns: ColumnMap) -> dict[str, str]:
        """Our columns and where they come from, as a user knows it."""
        fields = {name: f"field{place}" for place, name in enumerate(self._table.columns, start=1)}
        if self._table.form.separator is None:
            fields = dict.fromkeys(fields, "line")
        if self._table.form.has_header is not False:
            fields = {}
        folders = {name: f"folder {self._folder(name)}" for name in self._folder_values}
        known = {ours: columns.ours[ours] for ours in COLUMNS if ours in columns.ours}
        return {ours: folders.get(name) or fields.get(name, name) for ours, name in known.items()}


def _speaker(cell: Any) -> str | None:
    speaker = parse_string(cell, "speaker", "bad_speaker")
    return None if speaker is None else normalise_speaker(speaker)


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "text": lambda cell: parse_string(cell, "text", "bad_text"),
    "language": lambda cell: parse_language(parse_string(cell, "language", "bad_language") or ""),
    "speaker": _speaker,
    "instruct": lambda cell: parse_string(cell, "instruct", "bad_instruct"),
    "ref_text": lambda cell: parse_string(cell, "ref_text", "bad_row"),
    "x_vector_only": lambda cell: parse_flag(cell, "x_vector_only"),
    "non_streaming": lambda cell: parse_flag(cell, "non_streaming"),
    "seed": lambda cell: parse_whole(cell, "seed", 0, MAX_SEED, "bad_seed"),
    "max_frames": lambda cell: parse_whole(cell, "max_frames", 1, _MAX_FRAMES, "bad_row"),
    "task": parse_task,
    "ref_offset": lambda cell: parse_seconds(cell, "ref_offset"),
    "ref_duration": lambda cell: parse_seconds(cell, "ref_duration"),
}


def _content(cells: Mapping[str, Any], ref: RefAudio | None) -> str:
    """What tells rows without an id apart: the cells that make the sound, as written."""
    shown = {name: cell for name, cell in cells.items() if name != "id" and not is_empty(cell)}
    if "ref_audio" in shown:
        shown["ref_audio"] = ref.label if ref is not None else None
    return "\x1f".join(f"{name}={shown[name]}" for name in COLUMNS if name in shown)
