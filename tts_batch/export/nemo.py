"""`--to nemo`: audio/ and manifest.jsonl, a line of `audio_filepath`, `duration` and `text` for each clip."""

from __future__ import annotations

from functools import partial

from tts_batch.export.clips import FinishedClip, FinishedClips, ahead
from tts_batch.export.columns import json_line
from tts_batch.export.options import ExportOptions
from tts_batch.export.target import Target

TAKES = frozenset({".wav", ".flac"})
_MORE = ("id", "speaker", "language")


def write_nemo(clips: FinishedClips, target: Target, options: ExportOptions) -> list[str]:
    """Write the clips and manifest.jsonl; its paths are relative to its folder, so that it can be moved.

    The table's other columns stay out: NeMo takes some, such as `offset`, for its own.
    """
    put = partial(put_beside, target, options, TAKES)
    with target.write("manifest.jsonl") as file:
        for clip, name in ahead(put, clips):
            row = clip.row
            more = {key: row[key] for key in _MORE if row[key] is not None}
            file.write(json_line({"audio_filepath": name, "duration": row["duration_s"], "text": row["text"], **more}))
    return []


def put_beside(target: Target, options: ExportOptions, takes: frozenset[str], clip: FinishedClip) -> str:
    """Put a clip under audio/, in the folder and under the name that it has in the run; return the path."""
    return target.put(clip, f"audio/{clip.path.parent.name}/{clip.path.stem}", takes, hard_link=options.hard_link)
