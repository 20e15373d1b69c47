"""What options may be: every choice of the toolkit stated once, as a type and as a tuple. Importing it is cheap."""

from __future__ import annotations

from typing import Literal, get_args

from tts_batch.engine.choices import (
    CODE2WAV_MODES,
    DEVICES,
    DTYPES,
    PLACEMENTS,
    PROFILES,
    RUNNERS,
    Code2WavModeName,
    DeviceName,
    DtypeName,
    PlacementName,
    ProfileName,
    RunnerName,
)

__all__ = [
    "BENCH_CACHES",
    "BENCH_ENGINES",
    "BENCH_SHAPES",
    "BENCH_WORKLOADS",
    "CHECKS",
    "CODE2WAV_MODES",
    "DEVICES",
    "DTYPES",
    "EXPORT_FORMATS",
    "FORMATS",
    "LAUNCHERS",
    "PLACEMENTS",
    "PROFILES",
    "PROGRESS_MODES",
    "RUNNERS",
    "TASKS",
    "TINY_MODELS",
    "BenchCache",
    "BenchEngine",
    "BenchShape",
    "BenchWorkload",
    "CheckName",
    "Code2WavModeName",
    "DeviceName",
    "DtypeName",
    "ExportFormat",
    "Format",
    "LauncherName",
    "PlacementName",
    "ProfileName",
    "ProgressMode",
    "RunnerName",
    "Task",
    "TinyModel",
]

Task = Literal["base", "custom_voice", "voice_design"]
"""The kind of a checkpoint, and of a row: a cloned, a built-in or a described voice."""

TinyModel = Literal["tiny", "tiny-random"]
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
ExportFormat = Literal["hf", "audiofolder", "webdataset", "ljspeech", "nemo", "qwen-sft"]
BenchShape = Literal["1.7b", "0.6b"]
BenchWorkload = Literal["seed-tts", "fixed"]
BenchCache = Literal["warm", "cold"]
BenchEngine = Literal["native", "vllm"]

TASKS: tuple[Task, ...] = get_args(Task)
TINY_MODELS: tuple[TinyModel, ...] = get_args(TinyModel)
FORMATS: tuple[Format, ...] = get_args(Format)
CHECKS: tuple[CheckName, ...] = get_args(CheckName)
PROGRESS_MODES: tuple[ProgressMode, ...] = get_args(ProgressMode)
LAUNCHERS: tuple[LauncherName, ...] = get_args(LauncherName)
EXPORT_FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)
BENCH_SHAPES: tuple[BenchShape, ...] = get_args(BenchShape)
BENCH_WORKLOADS: tuple[BenchWorkload, ...] = get_args(BenchWorkload)
BENCH_CACHES: tuple[BenchCache, ...] = get_args(BenchCache)
BENCH_ENGINES: tuple[BenchEngine, ...] = get_args(BenchEngine)
