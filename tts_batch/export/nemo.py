"""`--to nemo`: audio/ and manifest.jsonl, a line of `audio_filepath`, `duration` and `text` for each clip."""

from __future__ import annotations

from functools import partial

from tts_batch.export.clips import FinishedClip, FinishedClips, map_ahead
from tts_batch.export.columns import json_line
from tts_batch.export.options import ExportOptions
from tts_batch.export.target import Target

CLIP_SUFFIXES = frozenset({".wav", ".flac"})
_MORE = ("id", "speaker", "language")


def write_nemo(clips: FinishedClips, target: Target, options: ExportOptions) -> list[str]:
    """Write audio/ab/NAME.wav (or .flac) and manifest.jsonl, one JSON object a line for each clip.

    An object has `audio_filepath` (relative to the folder, so that it can be moved), `duration` in seconds and `text`,
    then `id`, and `speaker` and `language` where the row has them. The table's other columns are left out, since NeMo
    gives some of their names, such as `offset`, a meaning of its own.
    """
    put = partial(put_as_in_run, target, options, CLIP_SUFFIXES)
    with target.write("manifest.jsonl") as file:
        for clip, name in map_ahead(put, clips):
            row = clip.row
            more = {key: row[key] for key in _MORE if row[key] is not None}
            file.write(json_line({"audio_filepath": name, "duration": row["duration_s"], "text": row["text"], **more}))
    return []


def put_as_in_run(target: Target, options: ExportOptions, suffixes: frozenset[str], clip: FinishedClip) -> str:
    """Put a clip under audio/, with the folder and name that it has in the run; return the path."""
    return target.put(clip, f"audio/{clip.path.parent.name}/{clip.path.stem}", suffixes, hard_link=options.hard_link)
