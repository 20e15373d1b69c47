"""The formats by name: how each is written, the clips and options that it supports, and the files that it writes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tts_batch.export import ljspeech, nemo, qwen_sft
from tts_batch.export.audiofolder import write_audiofolder
from tts_batch.export.clips import FinishedClips
from tts_batch.export.hf import write_hf
from tts_batch.export.ljspeech import write_ljspeech
from tts_batch.export.nemo import write_nemo
from tts_batch.export.options import ExportOptions
from tts_batch.export.qwen_sft import write_qwen_sft
from tts_batch.export.target import Target
from tts_batch.export.webdataset import write_webdataset
from tts_batch.store.clips import SUFFIXES

_ANY = frozenset(SUFFIXES)


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """One of the formats of `--to`."""

    write: Callable[[FinishedClips, Target, ExportOptions], list[str]]  # returns remarks for the user
    file_pattern: re.Pattern[str]  # of the paths of its files in its folder
    supported_options: frozenset[str]  # fields of ExportOptions
    clip_suffixes: frozenset[str] = _ANY  # of clips that it stores as they are


_CARD = r"|README\.md"
_CLIPS = r"audio/[0-9a-f]{2}/[^/]+\.(wav|flac)|"

FORMATS = {
    "hf": ExportFormat(
        write=write_hf,
        file_pattern=re.compile(r"data/train-\d+-of-\d+\.parquet" + _CARD),
        supported_options=frozenset({"shard_bytes"}),
    ),
    "audiofolder": ExportFormat(
        write=write_audiofolder,
        file_pattern=re.compile(
            rf"audio/\d{{4,}}/\d{{9,}}({'|'.join(map(re.escape, SUFFIXES))})|metadata\.parquet" + _CARD
        ),
        supported_options=frozenset({"hard_link"}),
    ),
    "webdataset": ExportFormat(
        write=write_webdataset,
        file_pattern=re.compile(r"shard-\d+\.tar|dataset_info\.json" + _CARD),
        supported_options=frozenset({"shard_bytes"}),
    ),
    "ljspeech": ExportFormat(
        write=write_ljspeech,
        file_pattern=re.compile(r"wavs/[^/]+\.wav|metadata\.csv"),
        supported_options=frozenset({"hard_link", "decode"}),
        clip_suffixes=ljspeech.CLIP_SUFFIXES,
    ),
    "nemo": ExportFormat(
        write=write_nemo,
        file_pattern=re.compile(_CLIPS + r"manifest\.jsonl"),
        supported_options=frozenset({"hard_link", "decode"}),
        clip_suffixes=nemo.CLIP_SUFFIXES,
    ),
    "qwen-sft": ExportFormat(
        write=write_qwen_sft,
        file_pattern=re.compile(_CLIPS + r"ref\.wav|train_raw\.jsonl"),
        supported_options=frozenset({"hard_link", "decode", "ref_audio"}),
        clip_suffixes=qwen_sft.CLIP_SUFFIXES,
    ),
}
