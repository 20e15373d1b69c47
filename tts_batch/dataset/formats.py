"""open_table: the reader of a file, by its suffix and, for .csv, .txt and .lst, its first line."""

from __future__ import annotations

from tts_batch.dataset.binary_tables import ArrowTable, ParquetTable
from tts_batch.dataset.files import TableFile
from tts_batch.dataset.tables import Table
from tts_batch.dataset.text_tables import CsvTable, JsonLinesTable, UnquotedTable, is_pipe_list


def open_table(file: TableFile) -> Table:
    """Open `file`. Raises UsageError when it cannot be read."""
    match file.suffix:
        case ".parquet":
            return ParquetTable(file)
        case ".arrow":
            return ArrowTable(file)
        case ".jsonl" | ".json":
            return JsonLinesTable(file)
        case ".tsv":
            return UnquotedTable(file, "\t")
        case _ if is_pipe_list(file):
            return UnquotedTable(file, "|")
        case _:
            return CsvTable(file)
