"""`--to webdataset`: numbered tar shards of KEY.wav and KEY.json, for streaming."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from itertools import islice
from typing import Any, BinaryIO

from tts_batch.export.card import write_card
from tts_batch.export.clips import FinishedClip, FinishedClips, map_ahead, skip, split_by_bytes
from tts_batch.export.columns import json_features, json_line
from tts_batch.export.options import ExportOptions
from tts_batch.export.target import Target

INDEX = "dataset_info.json"
"""The list of shards. `datasets` would read it as data under another name."""

_EXAMPLE = """import webdataset

samples = webdataset.WebDataset("shard-{000000..%06d}.tar").decode()"""


def write_webdataset(clips: FinishedClips, target: Target, options: ExportOptions) -> list[str]:
    """Write shard-NNNNNN.tar, dataset_info.json (the shards with their samples and bytes) and README.md.

    A sample is KEY.wav (or the clip's own suffix), the unchanged file, and KEY.json, the exported columns. KEY is the
    clip's number, of nine digits, over all shards, since an id may have a dot or a slash. The id is in the JSON.
    """
    stream, shards = iter(clips), []
    for number, count in enumerate(split_by_bytes(clips.sizes, options.shard_bytes)):
        name = f"shard-{number:06d}.tar"
        if target.has(name):
            skip(stream, count)
        else:
            with target.write(name) as file:
                _write_shard(file, islice(stream, count))
        shards.append({"file": name, "samples": count, "bytes": (target.folder / name).stat().st_size})
    with target.write(INDEX) as file:
        file.write(json.dumps({"samples": len(clips), "shards": shards}, indent=1).encode())
    write_card(clips, target, _loader_metadata(clips), _EXAMPLE % (len(shards) - 1))
    return []


def _write_shard(file: BinaryIO, clips: Iterator[FinishedClip]) -> None:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for clip, data in map_ahead(FinishedClip.read, clips):
            key = f"{clip.position:09d}"
            _add(tar, key + clip.suffix, data)
            _add(tar, f"{key}.json", json_line(clip.row))


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)  # without time and owner, so that equal clips give equal shards
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _loader_metadata(clips: FinishedClips) -> dict[str, Any]:
    """Return the features, which `datasets` would infer from a few samples, where a column may be empty."""
    audio = [{"name": suffix.removeprefix("."), "dtype": "audio"} for suffix in sorted(clips.suffixes)]
    features = [*audio, {"name": "json", "struct": json_features(clips.schema)}]
    features += [{"name": name, "dtype": "string"} for name in ("__key__", "__url__")]
    files = [{"split": "train", "path": "shard-*.tar"}]
    return {
        "dataset_info": {"features": features},
        "configs": [{"config_name": "default", "data_files": files}],
    }
