"""What options may be: every choice stated once, as a type and as a tuple; those of an engine are in engine/choices.py.

Importing it is cheap.
"""

from __future__ import annotations

from typing import Literal, get_args

Task = Literal["base", "custom_voice", "voice_design"]
"""The kind of a checkpoint, and of a row: a cloned, a built-in or a described voice."""

TINY_MODELS = ("tiny", "tiny-random")
"""Models that come with the package, in all three tasks."""

Format = Literal["wav", "wav24", "wavf32", "flac", "mp3", "opus"]
CheckName = Literal[
    "silent_peak_dbfs",
    "too_long_factor",
    "too_long_floor_s",
    "too_short_factor",
    "too_short_floor_s",
    "long_silence_s",
    "noise_flatness",
    "ref_correlation",
]
ProgressMode = Literal["auto", "bar", "plain", "none"]
LauncherName = Literal["local", "ray"]

TASKS: tuple[Task, ...] = get_args(Task)
FORMATS: tuple[Format, ...] = get_args(Format)
CHECKS: tuple[CheckName, ...] = get_args(CheckName)
EXPORT_FORMATS = ("hf", "audiofolder", "webdataset", "ljspeech", "nemo", "qwen-sft")
BENCH_SHAPES = ("1.7b", "0.6b")
BENCH_WORKLOADS = ("seed-tts", "fixed")
BENCH_CACHES = ("warm", "cold")
BENCH_ENGINES = ("native", "vllm")
