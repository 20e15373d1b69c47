"""The formats that hold the audio in large numbered files, for the Hub and for streaming: hf and webdataset."""

from __future__ import annotations

import io
import json
import tarfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tts_batch.export.card import DATASETS, write_card
from tts_batch.export.clips import FinishedClip, FinishedClips, map_ahead
from tts_batch.export.columns import json_features, json_line
from tts_batch.export.target import Target

ROW_GROUP_BYTES = 100_000_000
"""The audio in a row group: the Hub's viewer reads whole groups, of at most 286 MiB."""

INDEX = "dataset_info.json"
"""webdataset's list of shards. `datasets` would read it as data under another name."""

_AUDIO = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_EXAMPLE = """import webdataset

samples = webdataset.WebDataset("shard-{000000..%06d}.tar").decode()"""

WriteShard = Callable[[BinaryIO, Iterator[FinishedClip], Sequence[int]], None]
"""Writes a shard into a file, from its clips and their sizes in bytes."""


def write_hf(clips: FinishedClips, target: Target) -> list[str]:
    """Write data/train-NNNNN-of-NNNNN.parquet and README.md.

    A shard has a row for each clip: `id`, `audio` (a struct of the unchanged file as `bytes` and its name as `path`),
    then the other exported columns. Its schema's metadata declares `audio` as an Audio feature.
    """
    rates = sorted(clips.sample_rates)
    feature = {"sampling_rate": rates[0] if len(rates) == 1 else None, "_type": "Audio"}
    metadata = {"huggingface": json.dumps({"info": {"features": {"audio": feature}}})}
    columns = list(clips.schema)
    schema = pa.schema([columns[0], ("audio", _AUDIO), *columns[1:]], metadata)
    _write_shards(clips, target, "data/train-{0:05d}-of-{1:05d}.parquet", partial(_write_parquet, schema))
    files = [{"split": "train", "path": "data/train-*"}]
    write_card(clips, target, {"configs": [{"config_name": "default", "data_files": files}]}, DATASETS)
    return []


def _write_parquet(schema: pa.Schema, file: BinaryIO, clips: Iterator[FinishedClip], sizes: Sequence[int]) -> None:
    # A dictionary would hold every clip. The page size is checked after each 16 values, so that no page gets large.
    columns = [name for name in schema.names if name != "audio"]
    with pq.ParquetWriter(file, schema, compression="zstd", use_dictionary=columns, write_batch_size=16) as writer:
        for count in split_by_bytes(sizes, ROW_GROUP_BYTES):
            rows = [
                {**clip.row, "audio": {"bytes": data, "path": clip.path.name}}
                for clip, data in map_ahead(FinishedClip.read, islice(clips, count))
            ]
            writer.write_table(pa.Table.from_pylist(rows, schema), row_group_size=count)


def write_webdataset(clips: FinishedClips, target: Target) -> list[str]:
    """Write shard-NNNNNN.tar, dataset_info.json (the shards with their samples and bytes) and README.md.

    A sample is KEY.wav (or the clip's own suffix), the unchanged file, and KEY.json, the exported columns. KEY is the
    clip's number, of nine digits, over all shards, since an id may have a dot or a slash. The id is in the JSON.
    """
    shards = [
        {"file": name, "samples": count, "bytes": target.size(name)}
        for name, count in _write_shards(clips, target, "shard-{0:06d}.tar", _write_tar)
    ]
    with target.write(INDEX) as file:
        file.write(json.dumps({"samples": len(clips), "shards": shards}, indent=1).encode())
    # The features, which `datasets` would infer from a few samples, where a column may be empty.
    features = [
        *({"name": suffix.removeprefix("."), "dtype": "audio"} for suffix in sorted(clips.suffixes)),
        {"name": "json", "struct": json_features(clips.schema)},
        *({"name": name, "dtype": "string"} for name in ("__key__", "__url__")),
    ]
    files = [{"split": "train", "path": "shard-*.tar"}]
    metadata = {"dataset_info": {"features": features}, "configs": [{"config_name": "default", "data_files": files}]}
    write_card(clips, target, metadata, _EXAMPLE % (len(shards) - 1))
    return []


def _write_tar(file: BinaryIO, clips: Iterator[FinishedClip], sizes: Sequence[int]) -> None:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for clip, audio in map_ahead(FinishedClip.read, clips):
            for suffix, data in ((clip.suffix, audio), (".json", json_line(clip.row))):
                member = tarfile.TarInfo(f"{clip.position:09d}{suffix}")  # no time, no owner: equal clips, equal shards
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def _write_shards(clips: FinishedClips, target: Target, name: str, write: WriteShard) -> list[tuple[str, int]]:
    """Write what is not there yet, and return the name of each shard and its number of clips.

    `name` is a format of a shard's number and of how many there are.
    """
    lengths = list(split_by_bytes(clips.sizes, round(target.options.shard_mb * 1e6)))
    names = [name.format(number, len(lengths)) for number in range(len(lengths))]
    stream, done = iter(clips), 0
    for shard, count in zip(names, lengths, strict=True):
        ours = islice(stream, count)
        if target.has(shard):
            deque(ours, maxlen=0)  # read past it
        else:
            with target.write(shard) as file:
                write(file, ours, clips.sizes[done : done + count])
        done += count
    return list(zip(names, lengths, strict=True))


def split_by_bytes(sizes: Sequence[int], limit_bytes: int) -> Iterator[int]:
    """Yield the lengths of consecutive groups of `sizes` whose sums stay within the limit; each has one at least."""
    count = total = 0
    for size in sizes:
        if count and total + size > limit_bytes:
            yield count
            count = total = 0
        count += 1
        total += size
    if count:
        yield count
