"""`--to audiofolder`: audio files beside one table of metadata, which `datasets.load_dataset(DIR)` joins."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tts_batch.export.card import DATASETS, write_card
from tts_batch.export.clips import FinishedClip, FinishedClips, map_ahead
from tts_batch.export.options import ExportOptions
from tts_batch.export.target import Target
from tts_batch.store.clips import SUFFIXES

FILES_IN_A_FOLDER = 10_000
"""The limit of the Hub."""

_ROW_GROUP_ROWS = 10_000
_ALL = frozenset(SUFFIXES)


def write_audiofolder(clips: FinishedClips, target: Target, options: ExportOptions) -> list[str]:
    """Write audio/NNNN/NNNNNNNNN.SUFFIX (10,000 files a folder), metadata.parquet and README.md.

    The table has a row for each clip: `file_name`, the path of its audio, then the exported columns. Files are numbered
    in input order, since a name with "train" or "test" in it would be read as a split's. The table is Parquet, since
    `datasets` infers types from CSV and JSON: an id 0007 becomes 7, and a column that begins empty stays empty.
    """
    names = _column_names(clips.schema)
    schema = pa.schema([("file_name", pa.string()), *(column.with_name(names[column.name]) for column in clips.schema)])
    put = partial(_put, target, options)
    with (
        target.write("metadata.parquet") as file,
        pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        rows: list[Mapping[str, Any]] = []
        for clip, name in map_ahead(put, clips):
            rows.append({"file_name": name, **{names[column]: value for column, value in clip.row.items()}})
            if len(rows) == _ROW_GROUP_ROWS:
                writer.write_table(pa.Table.from_pylist(rows, schema))
                rows.clear()
        if rows:
            writer.write_table(pa.Table.from_pylist(rows, schema))
    write_card(clips, target, {}, DATASETS)
    return []


def _put(target: Target, options: ExportOptions, clip: FinishedClip) -> str:
    stem = f"audio/{clip.position // FILES_IN_A_FOLDER:04d}/{clip.position:09d}"
    return target.put(clip, stem, _ALL, hard_link=options.hard_link)


def _column_names(schema: pa.Schema) -> dict[str, str]:
    """Return new names for columns that the loader would read as file names, or as the audio."""
    names: dict[str, str] = {}
    for name in schema.names:
        other = name.replace("file_name", "filename") if name.endswith(("file_name", "file_names")) else name
        while other == "audio" or (other != name and (other in schema.names or other in names.values())):
            other = f"input_{other}"
        names[name] = other
    return names
