"""The formats by name: who writes each, which clips it takes as they are, which options it heeds, what it leaves."""

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
    owns: re.Pattern[str]  # the paths of its files in its folder
    heeds: frozenset[str]  # the options that mean something to it
    takes: frozenset[str] = _ANY  # suffixes of clips that stay as they are


_CARD = r"|README\.md"
_CLIPS = r"audio/[0-9a-f]{2}/[^/]+\.(wav|flac)|"

FORMATS = {
    "hf": ExportFormat(write_hf, re.compile(r"data/train-\d+-of-\d+\.parquet" + _CARD), frozenset({"shard_bytes"})),
    "audiofolder": ExportFormat(
        write_audiofolder,
        re.compile(rf"audio/\d{{4,}}/\d{{9,}}({'|'.join(map(re.escape, SUFFIXES))})|metadata\.parquet" + _CARD),
        frozenset({"hard_link"}),
    ),
    "webdataset": ExportFormat(
        write_webdataset, re.compile(r"shard-\d+\.tar|dataset_info\.json" + _CARD), frozenset({"shard_bytes"})
    ),
    "ljspeech": ExportFormat(
        write_ljspeech,
        re.compile(r"wavs/[^/]+\.wav|metadata\.csv"),
        frozenset({"hard_link", "decode"}),
        ljspeech.TAKES,
    ),
    "nemo": ExportFormat(
        write_nemo, re.compile(_CLIPS + r"manifest\.jsonl"), frozenset({"hard_link", "decode"}), nemo.TAKES
    ),
    "qwen-sft": ExportFormat(
        write_qwen_sft,
        re.compile(_CLIPS + r"ref\.wav|train_raw\.jsonl"),
        frozenset({"hard_link", "decode", "ref_audio"}),
        qwen_sft.TAKES,
    ),
}
