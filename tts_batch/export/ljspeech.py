"""`--to ljspeech`: wavs/NAME.wav and metadata.csv, NAME|text|text, which almost every TTS trainer reads."""

from __future__ import annotations

import re
from functools import partial

from tts_batch.export.clips import FinishedClip, FinishedClips, map_ahead
from tts_batch.export.options import ExportOptions
from tts_batch.export.target import Target

CLIP_SUFFIXES = frozenset({".wav"})
# The separator, control characters, and line ends for some readers.
_UNWRITABLE = re.compile(r"[|\x00-\x1f\x7f\x85\u2028\u2029]+")


def write_ljspeech(clips: FinishedClips, target: Target, options: ExportOptions) -> list[str]:
    """Write wavs/NAME.wav and metadata.csv, in UTF-8, without a header or quotes, as its readers expect.

    A line is NAME|text|text. NAME is the clip's in the run folder: the id, where that is a valid file name. The third
    column, the normalised text, repeats the text, since some readers use only that. Vertical bars, line breaks and
    control characters become spaces.
    """
    put = partial(_put, target, options)
    changed = 0
    with target.write("metadata.csv") as file:
        for clip, name in map_ahead(put, clips):
            parts = [part.strip() for part in _UNWRITABLE.split(clip.row["text"])]
            changed += len(parts) > 1
            text = " ".join(filter(None, parts))
            file.write(f"{name.removeprefix('wavs/').removesuffix('.wav')}|{text}|{text}\n".encode())
    if not changed:
        return []
    return [f"Texts with a '|' or a line break: {changed}. In metadata.csv they are spaces."]


def _put(target: Target, options: ExportOptions, clip: FinishedClip) -> str:
    return target.put(clip, f"wavs/{clip.path.stem}", CLIP_SUFFIXES, hard_link=options.hard_link)
