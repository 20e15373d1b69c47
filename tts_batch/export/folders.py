"""The formats that keep every clip in a file of its own, beside one table: audiofolder, ljspeech, nemo and qwen-sft."""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tts_batch.dataset.audio import SAMPLE_RATE_HZ, load_reference, resample
from tts_batch.errors import RowError, UsageError
from tts_batch.export.card import DATASETS, write_card
from tts_batch.export.clips import FinishedClip, FinishedClips
from tts_batch.export.columns import json_line
from tts_batch.export.target import Target
from tts_batch.records import RefAudio
from tts_batch.store.clips import encode_wav

FILES_IN_A_FOLDER = 10_000
"""The limit of the Hub."""

IDEAL_REFERENCE_S = 8.0

_ROW_GROUP_ROWS = 10_000
# Of ljspeech's text: the separator, control characters, and line ends for some readers.
_UNWRITABLE = re.compile(r"[|\x00-\x1f\x7f\x85\u2028\u2029]+")


def write_audiofolder(clips: FinishedClips, target: Target) -> list[str]:
    """Write audio/NNNN/NNNNNNNNN.SUFFIX (10,000 files a folder), metadata.parquet and README.md.

    The table has a row for each clip: `file_name`, the path of its audio, then the exported columns. Files are numbered
    in input order, since a name with "train" or "test" in it would be read as a split's. The table is Parquet, since
    `datasets` infers types from CSV and JSON: an id 0007 becomes 7, and a column that begins empty stays empty.
    """
    names = _column_names(clips.schema)
    schema = pa.schema([("file_name", pa.string()), *(column.with_name(names[column.name]) for column in clips.schema)])
    rows = (
        {"file_name": file_name, **{names[column]: value for column, value in clip.row.items()}}
        for clip, file_name in target.put_all(clips, _numbered)
    )
    with target.write("metadata.parquet") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        while group := list(islice(rows, _ROW_GROUP_ROWS)):
            writer.write_table(pa.Table.from_pylist(group, schema))
    write_card(clips, target, {}, DATASETS)
    return []


def _numbered(clip: FinishedClip) -> str:
    return f"audio/{clip.position // FILES_IN_A_FOLDER:04d}/{clip.position:09d}"


def _column_names(schema: pa.Schema) -> dict[str, str]:
    """Return new names for columns that the loader would read as file names, or as the audio."""
    names: dict[str, str] = {}
    for name in schema.names:
        other = name.replace("file_name", "filename") if name.endswith(("file_name", "file_names")) else name
        while other == "audio" or (other != name and (other in schema.names or other in names.values())):
            other = f"input_{other}"
        names[name] = other
    return names


def write_ljspeech(clips: FinishedClips, target: Target) -> list[str]:
    """Write wavs/NAME.wav and metadata.csv, in UTF-8, without a header or quotes, as almost every TTS trainer expects.

    A line is NAME|text|text. NAME is the clip's in the run folder: the id, where that is a valid file name. The third
    column, the normalised text, repeats the text, since some readers use only that. Vertical bars, line breaks and
    control characters become spaces.
    """
    changed = 0
    with target.write("metadata.csv") as file:
        for clip, name in target.put_all(clips, lambda clip: f"wavs/{clip.path.stem}"):
            parts = [part.strip() for part in _UNWRITABLE.split(clip.row["text"])]
            changed += len(parts) > 1
            text = " ".join(filter(None, parts))
            file.write(f"{name.removeprefix('wavs/').removesuffix('.wav')}|{text}|{text}\n".encode())
    return [f"Texts with a '|' or a line break: {changed}. In metadata.csv they are spaces."] if changed else []


def _as_in_run(clip: FinishedClip) -> str:
    return f"audio/{clip.path.parent.name}/{clip.path.stem}"


def write_nemo(clips: FinishedClips, target: Target) -> list[str]:
    """Write audio/ab/NAME.wav (or .flac) and manifest.jsonl, one JSON object a line for each clip.

    An object has `audio_filepath` (relative to the folder, so that it can be moved), `duration` in seconds and `text`,
    then `id`, and `speaker` and `language` where the row has them. The table's other columns are left out, since NeMo
    gives some of their names, such as `offset`, a meaning of its own.
    """
    with target.write("manifest.jsonl") as file:
        for clip, name in target.put_all(clips, _as_in_run):
            row = clip.row
            more = {key: row[key] for key in ("id", "speaker", "language") if row[key] is not None}
            file.write(json_line({"audio_filepath": name, "duration": row["duration_s"], "text": row["text"], **more}))
    return []


def write_qwen_sft(clips: FinishedClips, target: Target) -> list[str]:
    """Write audio/ab/NAME.wav (or .flac), ref.wav and train_raw.jsonl, the input of Qwen3-TTS's fine-tuning scripts.

    A line has `audio` and `ref_audio`, paths relative to the folder, where the scripts are to run, and `text`. All
    lines share one reference, as the scripts advise, and require for batches of several lines: ref.wav, 16-bit mono at
    24 kHz, from `--ref-audio` or from the clip whose length is nearest to 8 s.
    """
    given = target.options.ref_audio
    try:
        samples = None if given is None else load_reference(RefAudio(path=str(given.resolve()), label=str(given)))
    except RowError as error:
        raise UsageError(f"--ref-audio cannot be used: {error}") from None
    voices: set[tuple[Any, ...]] = set()
    nearest: FinishedClip | None = None
    with target.write("train_raw.jsonl") as file:
        for clip, name in target.put_all(clips, _as_in_run):
            file.write(json_line({"audio": name, "text": clip.row["text"], "ref_audio": "ref.wav"}))
            if nearest is None or _distance_s(clip) < _distance_s(nearest):
                nearest = clip
            if len(voices) < 2:
                voices.add(_voice(clip))
        assert nearest is not None, "an export without clips is refused"
        if samples is None:
            samples = resample(*nearest.decode("float32"))
        with target.write("ref.wav") as reference:
            reference.write(encode_wav(samples, SAMPLE_RATE_HZ))
    remarks = []
    if given is None:
        length = f"{nearest.row['duration_s']:.1f} s"
        remarks.append(f"ref_audio is the clip {nearest.row['id']!r} ({length}); --ref-audio names another recording.")
    if len(voices) > 1:
        remarks.append("The clips have several voices; the fine-tuning scripts teach one.")
    return remarks


def _distance_s(clip: FinishedClip) -> float:
    return abs(float(clip.row["duration_s"]) - IDEAL_REFERENCE_S)


def _voice(clip: FinishedClip) -> tuple[Any, ...]:
    """Return what identifies the voice: a name, a recording, or the description of a designed voice."""
    row = clip.row
    return row["speaker"], row["ref_audio"], row["instruct"] if row["task"] == "voice_design" else None
