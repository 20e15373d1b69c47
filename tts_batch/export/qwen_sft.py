"""`--to qwen-sft`: the input of Qwen3-TTS's own fine-tuning scripts: lines of `audio`, `text` and `ref_audio`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts_batch.dataset.audio import SAMPLE_RATE_HZ, load_reference, resample
from tts_batch.errors import RowError, UsageError
from tts_batch.export.clips import FinishedClip, FinishedClips, map_ahead
from tts_batch.export.columns import json_line
from tts_batch.export.nemo import put_as_in_run
from tts_batch.export.options import ExportOptions
from tts_batch.export.target import Target
from tts_batch.records import RefAudio
from tts_batch.store.clips import encode_wav

CLIP_SUFFIXES = frozenset({".wav", ".flac"})
REFERENCE = "ref.wav"
IDEAL_REFERENCE_S = 8.0


def write_qwen_sft(clips: FinishedClips, target: Target, options: ExportOptions) -> list[str]:
    """Write audio/ab/NAME.wav (or .flac), ref.wav and train_raw.jsonl, one JSON object a line for each clip.

    An object has `audio` and `ref_audio`, paths relative to the folder, where the scripts are to run, and `text`. All
    lines share one reference, as the scripts advise, and require for batches of several lines: ref.wav, 16-bit mono at
    24 kHz, from `options.ref_audio` or from the clip whose length is nearest to 8 s.
    """
    given = None if options.ref_audio is None else _load(options.ref_audio)
    put = partial(put_as_in_run, target, options, CLIP_SUFFIXES)
    voices: set[tuple[Any, ...]] = set()
    nearest: FinishedClip | None = None
    with target.write("train_raw.jsonl") as file:
        for clip, name in map_ahead(put, clips):
            file.write(json_line({"audio": name, "text": clip.row["text"], "ref_audio": REFERENCE}))
            if nearest is None or _distance_s(clip) < _distance_s(nearest):
                nearest = clip
            if len(voices) < 2:
                voices.add(_voice(clip))
        assert nearest is not None, "an export without clips is refused"
        with target.write(REFERENCE) as reference:
            reference.write(encode_wav(_samples(nearest) if given is None else given, SAMPLE_RATE_HZ))
    remarks = []
    if given is None:
        length = f"{nearest.row['duration_s']:.1f} s"
        remarks.append(f"ref_audio is the clip {nearest.row['id']!r} ({length}); --ref-audio names another recording.")
    if len(voices) > 1:
        remarks.append("The clips have several voices; the fine-tuning scripts teach one.")
    return remarks


def _load(path: Path) -> NDArray[np.float32]:
    try:
        return load_reference(RefAudio(path=str(path.resolve()), label=str(path)))
    except RowError as error:
        raise UsageError(f"--ref-audio cannot be used: {error}") from None


def _samples(clip: FinishedClip) -> NDArray[np.float32]:
    return resample(*clip.decode("float32"))


def _distance_s(clip: FinishedClip) -> float:
    return abs(float(clip.row["duration_s"]) - IDEAL_REFERENCE_S)


def _voice(clip: FinishedClip) -> tuple[Any, ...]:
    """Return what identifies the voice: a name, a recording, or the description of a designed voice."""
    row = clip.row
    return row["speaker"], row["ref_audio"], row["instruct"] if row["task"] == "voice_design" else None
