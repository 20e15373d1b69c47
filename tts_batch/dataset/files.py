"""From what the command line names (files, folders, globs, URLs of any fsspec file system) to the tables to read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

import fsspec
import pyarrow as pa

from tts_batch.dataset.cells import printable
from tts_batch.dataset.near_files import near_file
from tts_batch.errors import UsageError
from tts_batch.object_store import check_url

_BINARY_SUFFIXES = (".parquet", ".arrow")
_TEXT_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".txt", ".lst", ".list")
TABLE_SUFFIXES: tuple[str, ...] = (*_BINARY_SUFFIXES, *_TEXT_SUFFIXES)
COMPRESSIONS: dict[str, str] = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
"""Of text files: the suffix after their own, and what Arrow calls it."""

# In a folder, .json, .txt and lists are more often notes and settings than tables: name such a file itself.
_FOLDER_SUFFIXES = frozenset({".parquet", ".csv", ".tsv", ".jsonl", ".ndjson", ".arrow"})
_FROM_PYTHON = re.compile(r"rows(-[0-9a-f]{12}\.parquet)?")  # as memory_table names them
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_SHEET_SUFFIXES = frozenset({".xlsx", ".xls", ".xlsm", ".ods", ".numbers"})
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class TableFile:
    """One file with rows."""

    path: str  # within its file system
    name: str  # how messages and `Row.source` call it
    file_system: Any

    @property
    def suffix(self) -> str:
        """What kind of table it is; of a compressed file, the suffix before that of its compression."""
        return _suffixes(self.path)[0]

    @property
    def folder(self) -> Path | None:
        """The local folder that relative paths in the table start from; None for a remote table."""
        return Path(self.path).absolute().parent if self.is_local else None

    @property
    def folder_url(self) -> str | None:
        """The URL of the folder of a remote table; None for a local one."""
        return None if self.is_local else str(self.file_system.unstrip_protocol(self.path)).rpartition("/")[0]

    @property
    def partitions(self) -> dict[str, str | None]:
        """The folders named key=value directly above the file, which are columns, as Hive and Spark write them.

        They are those of the whole path, so that they do not depend on how the file was named. Rows that came from
        Python have none: their path is not the user's. Raises UsageError for two of one name.
        """
        if _FROM_PYTHON.fullmatch(PurePosixPath(self.path).name):
            return {}
        found: list[tuple[str, str | None]] = []
        for folder in reversed(PurePosixPath(self.path).parts[:-1]):
            key, sign, value = folder.partition("=")
            if not (sign and key):
                break
            found.append((unquote(key), None if value == HIVE_NULL else unquote(value)))
        values = dict(reversed(found))
        if len(values) < len(found):
            raise UsageError(f"{self.name}: two folders above it are named {found[0][0]}=…: rename one of them.")
        return values

    @property
    def ignored_folders(self) -> list[str]:
        """The folders named key=value, among those that `name` shows, that are not directly above the file."""
        shown = PurePosixPath(self.name).parts[:-1]
        return [folder for folder in shown[: len(shown) - len(self.partitions)] if "=" in folder[1:]]

    @property
    def is_local(self) -> bool:
        return "file" in self.file_system.protocol

    @property
    def read_errors(self) -> tuple[type[Exception], ...]:
        """What reading it as Arrow or Parquet may raise: drivers of remote file systems raise what their clients do."""
        return (pa.ArrowException, OSError) if self.is_local else (Exception,)

    def open(self) -> BinaryIO:
        """Open the file's bytes, decompressed."""
        source = self.file_system.open(self.path, "rb")
        compression = _suffixes(self.path)[1]
        if compression is not None:
            source = pa.input_stream(source, compression=COMPRESSIONS[compression])
        return cast(BinaryIO, source)


@contextmanager
def os_errors_as_usage(name: str, *, is_local: bool = True) -> Iterator[None]:
    """Turn an error of the file system into a UsageError that names what cannot be read."""
    try:
        yield
    except UsageError:
        raise
    except OSError as error:
        file = (
            error.filename if isinstance(error.filename, str) and error.filename.rpartition("/")[2] not in name else ""
        )
        where = f" ({printable(file)})" if file else ""
        raise UsageError(f"{printable(name)} cannot be read: {error.strerror or error}{where}.") from error
    except Exception as error:  # drivers of remote file systems raise what their clients do
        if is_local:
            raise
        raise UsageError(
            f"{printable(name)} cannot be read: {type(error).__name__}: {printable(str(error))}"
        ) from error


def find_tables(specs: tuple[str, ...]) -> list[TableFile]:
    """Return the tables in the order given, those of a folder or glob sorted by name, each once.

    In folders and globs, files and folders whose names start with "." or "_" are skipped, and so are empty files; in
    folders, also run folders below them.
    Raises UsageError for a spec that names nothing, a kind of file we cannot read, or a missing fsspec driver.
    """
    tables: dict[str, TableFile] = {}
    for spec in specs:
        if not spec.strip():
            raise UsageError("The name of the table is empty: name a file or a folder, as in `synth table.csv`.")
        with os_errors_as_usage(spec, is_local=":" not in spec):
            for table in _expand(spec):
                tables.setdefault(table.path, table)
    if not tables:
        raise UsageError(f"{printable(' '.join(specs)) or 'the input'} holds no table: every file found is empty.")
    return list(tables.values())


def _expand(spec: str) -> list[TableFile]:
    file_system, path = _file_system(spec)
    if file_system.isfile(path):
        _check_suffix(path, spec)
        return [TableFile(path, printable(PurePosixPath(path).name), file_system)]
    if file_system.isdir(path):
        root, found = path, _without_runs(sorted(file_system.find(path)), path)
        found = [file for file in found if _suffixes(file)[0] in _FOLDER_SUFFIXES]
        found = _without_caches(found, file_system)
    elif first := _GLOB.search(path):
        root = path[: first.start()].rpartition("/")[0]
        found = sorted(file for file in file_system.glob(path) if file_system.isfile(file))
        found = [file for file in found if _suffixes(file)[0] in TABLE_SUFFIXES]
    elif spec == "-" or ("file" in file_system.protocol and os.path.exists(path)):
        raise UsageError(f"{printable(spec)} is no file: a table is read several times, so save it as one first.")
    else:
        near = near_file(path) if "file" in file_system.protocol else None
        hint = (
            f" Near it is {near!r}."
            if near
            else " Texts to be spoken go into a table: a .txt file with one a line, or in Python [{'text': …}]."
        )
        raise UsageError(f"{printable(spec)} does not exist.{hint}")
    visible = [(file, _below(file, root)) for file in found if not _is_hidden(_below(file, root))]
    if not visible:
        raise UsageError(f"{printable(spec)} holds no table: looked for {', '.join(sorted(_FOLDER_SUFFIXES))} files.")
    return [TableFile(file, printable(below), file_system) for file, below in visible if file_system.size(file)]


def _without_runs(found: list[str], root: str) -> list[str]:
    """Leave out the run folders below `root`: what was made of tables must not be taken for more of them."""
    runs = [f"{PurePosixPath(file).parent}/" for file in found if PurePosixPath(file).name == "run.json"]
    inner = tuple(run for run in runs if run.rstrip("/") != root.rstrip("/"))
    return [file for file in found if not file.startswith(inner)]


def _without_caches(found: list[str], file_system: Any) -> list[str]:
    """Of a dataset that `datasets` saved, keep the data: the Arrow files it caches beside them hold other rows."""
    folders = {PurePosixPath(file).parent for file in found if file.endswith(".arrow")}
    data = {folder: _data_files(folder, file_system) for folder in folders}
    paths = {file: PurePosixPath(file) for file in found}
    return [file for file, path in paths.items() if (names := data.get(path.parent)) is None or path.name in names]


def _data_files(folder: PurePosixPath, file_system: Any) -> set[str] | None:
    """The names that a saved dataset's state.json lists; None for any other folder."""
    try:
        return {file["filename"] for file in json.loads(file_system.cat_file(f"{folder}/state.json"))["_data_files"]}
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _file_system(spec: str) -> tuple[Any, str]:
    try:
        file_system, path = fsspec.core.url_to_fs(check_url(spec))
    except (ImportError, ValueError) as error:
        raise UsageError(f"{printable(spec)} cannot be opened: {error}") from error
    return file_system, path


def _check_suffix(path: str, spec: str) -> None:
    suffix, compression = _suffixes(path)
    if suffix and suffix not in TABLE_SUFFIXES:  # Kaldi's lists are called "text", without a suffix
        hint = " Export the sheet as CSV." if suffix in _SHEET_SUFFIXES else ""
        raise UsageError(
            f"{printable(spec)} is not a kind of table that can be read: {', '.join(TABLE_SUFFIXES)}; of text files "
            f"also with {', '.join(COMPRESSIONS)}.{hint}"
        )
    if compression is not None and suffix in _BINARY_SUFFIXES:
        raise UsageError(f"{printable(spec)} is compressed as a whole: unpack it; {suffix} compresses its columns.")


def _suffixes(path: str) -> tuple[str, str | None]:
    """Return the suffix that says what a file is, and that of its compression, if it has one."""
    name = PurePosixPath(path)
    last = name.suffix.casefold()
    return (PurePosixPath(name.stem).suffix.casefold(), last) if last in COMPRESSIONS else (last, None)


def _below(file: str, root: str) -> str:
    return file.removeprefix(root).lstrip("/")


def _is_hidden(below: str) -> bool:
    return any(part.startswith((".", "_")) for part in PurePosixPath(below).parts)
