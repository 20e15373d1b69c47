"""`--to ljspeech`: wavs/NAME.wav and metadata.csv, NAME|text|text, which almost every TTS trainer reads."""

from __future__ import annotations

import re
from functools import partial

from tts_batch.export.clips import FinishedClip, FinishedClips, ahead
from tts_batch.export.options import ExportOptions
from tts_batch.export.target import Target

TAKES = frozenset({".wav"})
# The separator, and all that ends a line for some reader.
_UNWRITABLE = re.compile(r"[|\x00-\x1f\x7f\x85\u2028\u2029]+")


def write_ljspeech(clips: FinishedClips, target: Target, options: ExportOptions) -> list[str]:
    """Write wavs/ and metadata.csv, without header or quoting, as its readers expect.

    NAME is that of the clip in the run folder: the id, where that can be a file's name. The third column, the
    normalised text, repeats the text: some readers look only there. What the file cannot hold becomes a space.
    """
    put = partial(_put, target, options)
    changed = 0
    with target.write("metadata.csv") as file:
        for clip, name in ahead(put, clips):
            parts = [part.strip() for part in _UNWRITABLE.split(clip.row["text"])]
            changed += len(parts) > 1
            text = " ".join(filter(None, parts))
            file.write(f"{name.removeprefix('wavs/').removesuffix('.wav')}|{text}|{text}\n".encode())
    if not changed:
        return []
    return [f"Texts with a '|' or a line break: {changed}. metadata.csv cannot hold those; there they are spaces."]


def _put(target: Target, options: ExportOptions, clip: FinishedClip) -> str:
    return target.put(clip, f"wavs/{clip.path.stem}", TAKES, hard_link=options.hard_link)
