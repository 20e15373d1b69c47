"""`--to hf`: Parquet shards that hold the audio; `datasets.load_dataset(DIR)` and the Hub's viewer open them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tts_batch.export.card import DATASETS, write_card
from tts_batch.export.clips import FinishedClip, FinishedClips, map_ahead, skip, split_by_bytes
from tts_batch.export.options import ExportOptions
from tts_batch.export.target import Target

ROW_GROUP_BYTES = 100_000_000
"""The audio in a row group: the Hub's viewer reads whole groups, of at most 286 MiB."""

_AUDIO = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write_hf(clips: FinishedClips, target: Target, options: ExportOptions) -> list[str]:
    """Write data/train-NNNNN-of-NNNNN.parquet and README.md.

    A shard has a row for each clip: `id`, `audio` (a struct of the unchanged file as `bytes` and its name as `path`),
    then the other exported columns. Its schema's metadata declares `audio` as an Audio feature.
    """
    schema = _schema(clips)
    shards = list(split_by_bytes(clips.sizes, options.shard_bytes))
    stream, done = iter(clips), 0
    for number, count in enumerate(shards):
        name = f"data/train-{number:05d}-of-{len(shards):05d}.parquet"
        if target.has(name):
            skip(stream, count)
        else:
            groups = split_by_bytes(clips.sizes[done : done + count], ROW_GROUP_BYTES)
            with target.write(name) as file:
                _write_shard(file, stream, groups, schema)
        done += count
    files = [{"split": "train", "path": "data/train-*"}]
    write_card(clips, target, {"configs": [{"config_name": "default", "data_files": files}]}, DATASETS)
    return []


def _schema(clips: FinishedClips) -> pa.Schema:
    """Return the columns with `audio` behind `id`, and the metadata that declares it to `datasets`."""
    rates = sorted(clips.sample_rates)
    feature = {"sampling_rate": rates[0] if len(rates) == 1 else None, "_type": "Audio"}
    metadata = {"huggingface": json.dumps({"info": {"features": {"audio": feature}}})}
    columns = list(clips.schema)
    return pa.schema([columns[0], ("audio", _AUDIO), *columns[1:]], metadata)


def _write_shard(file: BinaryIO, clips: Iterator[FinishedClip], groups: Iterable[int], schema: pa.Schema) -> None:
    # A dictionary would hold every clip. The page size is checked after each 16 values, so that no page gets large.
    columns = [name for name in schema.names if name != "audio"]
    with pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=columns, write_batch_size=16) as writer:
        for count in groups:
            rows = [_row(clip, data) for clip, data in map_ahead(FinishedClip.read, islice(clips, count))]
            writer.write_table(pa.Table.from_pylist(rows, schema), row_group_size=count)


def _row(clip: FinishedClip, data: bytes) -> dict[str, Any]:
    return {**clip.row, "audio": {"bytes": data, "path": clip.path.name}}
