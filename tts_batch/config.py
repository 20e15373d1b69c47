"""JobConfig: every setting of a run, checked and described once for the command line, recipes and the Python API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, TypedDict

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError
from pydantic_core import ErrorDetails

from tts_batch.choices import CHECKS, CheckName, Format, LauncherName, ProgressMode
from tts_batch.engine.choices import Code2WavModeName, DeviceName, DtypeName, PlacementName, ProfileName, RunnerName
from tts_batch.errors import UsageError

# The sections of --help.
MODEL = "Model and engine"
SAMPLING = "Sampling (default: the checkpoint's generation_config.json)"
TABLE = "Reading the table"
OUTPUT = "Run and output"

Share = Annotated[float, Field(gt=0, le=1)]
Pause = Annotated[float, Field(ge=0, le=60)]


def _option(section: str, default: Any, description: str, metavar: str | None = None, **shown: Any) -> Any:
    """A field with what the command line needs beside its type: see `tts_batch.cli.options`.

    The description says what None means; any other default is added to it in --help. `shown` may have `flags`, its
    names there, where they do not follow from the key, and `hidden`.
    """
    return Field(default, description=description, json_schema_extra={"section": section, "metavar": metavar, **shown})


class JobConfig(BaseModel):
    """Every setting of `tts-batch synth`. Unknown keys are errors. Paths are relative to the working folder.

    The keys are those of a recipe and, with - for _, the options of the command line. `None` (null in a recipe) leaves
    a setting to the checkpoint, the device or the table.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())

    data: tuple[str, ...] = Field(
        min_length=1,
        description="Input tables: files or globs (.parquet .arrow .csv .tsv .jsonl .txt).",
        json_schema_extra={"metavar": "TABLE..."},
    )

    # model and engine
    model: str | None = _option(
        MODEL,
        None,
        "Checkpoint folder, its URL (s3://, gs://, hf://), hub id, 'tiny' or 'tiny-random'. Default: what fits "
        "the table.",
        "NAME",
    )
    model_revision: str | None = _option(MODEL, None, "Hub revision of --model.", "REVISION")
    engine: str = _option(MODEL, "native", "'native', 'vllm' or 'package.module:factory'.", "NAME")
    engine_options: dict[str, str] = _option(
        MODEL,
        {},
        "Set one of EngineConfig.options: a knob of the native engine's profile, or an option of another engine. "
        "May be repeated.",
        "NAME=VALUE",
        flags=("--engine-option",),
    )
    runner: RunnerName | None = _option(MODEL, None, "Default: v2 on CUDA, else v1.")
    device: DeviceName = _option(MODEL, "auto", "Where to compute.")
    dtype: DtypeName = _option(MODEL, "auto", "Number format of the weights; auto: bfloat16 where it is in hardware.")
    gpus: tuple[int, ...] | None = _option(
        MODEL, None, "Positions among the visible devices. Default: all of them.", "I,J,..."
    )
    profile: ProfileName | None = _option(
        MODEL, None, "The engine's sizes. Default: throughput for runner v2 on CUDA, else basic."
    )
    placement: PlacementName = _option(
        MODEL, "colocated", "Each worker on one device, or split over two: Code2Wav on the second."
    )
    cuda_graph: bool = _option(MODEL, True, "Capture CUDA graphs.")
    eager: bool = _option(MODEL, False, "Neither CUDA graph capture nor Triton kernels: plain torch.")
    max_num_seqs: PositiveInt | None = _option(
        MODEL, None, "Rows decoded together. Default: from the profile and the free memory."
    )
    code2wav_mode: Code2WavModeName = _option(
        MODEL, "utterance", "Decode whole clips, or chunks while codes are generated."
    )
    stall_timeout: PositiveFloat = _option(
        MODEL, 30.0, "Seconds the engine may go without progress; 20 times as many on a CPU.", "S"
    )
    launcher: LauncherName = _option(MODEL, "local", "What starts the workers: this machine, or a Ray cluster.")
    ray_address: str | None = _option(
        MODEL, None, "HOST:PORT of the Ray cluster. Default: RAY_ADDRESS, a cluster of this machine, or a new one."
    )

    # sampling
    greedy: bool = _option(SAMPLING, False, "No sampling, in the talker and in the code predictor.")
    temperature: PositiveFloat | None = _option(SAMPLING, None, "Temperature of the talker.")
    top_k: NonNegativeInt | None = _option(SAMPLING, None, "Sample among the K likeliest codes. 0: all.")
    top_p: Share | None = _option(SAMPLING, None, "Sample among the likeliest codes of this total probability.")
    repetition_penalty: PositiveFloat | None = _option(SAMPLING, None, "Above 1: make repeated codes less likely.")
    subtalker_temperature: PositiveFloat | None = _option(SAMPLING, None, "Temperature of the code predictor.")
    subtalker_top_k: NonNegativeInt | None = _option(SAMPLING, None, "--top-k of the code predictor.")
    subtalker_top_p: Share | None = _option(SAMPLING, None, "--top-p of the code predictor.")
    min_new_tokens: NonNegativeInt | None = _option(SAMPLING, None, "No end of speech before this many frames.")
    max_frames: PositiveInt | None = _option(
        SAMPLING, None, "Codec budget of every row, 12.5 frames a second. Default: from its text."
    )
    loop_frames: NonNegativeInt | None = _option(
        SAMPLING, None, "Fail an attempt that loops for this many frames. 0: never. Default: the profile's, 75."
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = _option(SAMPLING, 0, "Seed of the run.")
    attempts: PositiveInt = _option(SAMPLING, 1, "How often a row is tried.")
    retry_changes_seed: bool = _option(SAMPLING, False, "Further attempts may change a row's own seed.")
    takes: PositiveInt = _option(SAMPLING, 1, "Clips to make of each row.")
    non_streaming: bool | None = _option(
        SAMPLING,
        None,
        "Prompt layout: the whole text first, or text beside frames. Default: the task's own.",
        flags=["--non-streaming/--streaming"],
    )
    x_vector_only: bool | None = _option(
        SAMPLING, None, "Clone from the voice vector alone, in rows without a value of their own."
    )

    # reading the table
    map: dict[str, str] = _option(TABLE, {}, "Read NAME from the table's COLUMN. May be repeated.", "NAME=COLUMN")
    encoding: str | None = _option(
        TABLE,
        None,
        "Encoding of text tables, cp1252 for example. Default: by their byte order mark, else UTF-8.",
        "NAME",
    )
    language: str | None = _option(TABLE, None, "Language of rows without one. Default: auto.", "NAME")
    speaker: str | None = _option(TABLE, None, "Speaker of rows without one.", "NAME")
    instruct: str | None = _option(TABLE, None, "Instruction of rows without one.", "TEXT")
    split_text: Annotated[int, Field(ge=20)] | None = _option(
        TABLE, None, "Speak longer texts in pieces of at most N characters, each a request of its own."
    )
    split_pause_s: Pause = _option(TABLE, 0.3, "Seconds of silence between two pieces.", "S")
    limit: PositiveInt | None = _option(TABLE, None, "Only the first N rows.")
    strict: bool = _option(TABLE, False, "Unknown columns are errors.")
    audio_root: Path | None = _option(TABLE, None, "The only folder that ref_audio paths may name.", "DIR")
    allow_url: bool = _option(
        TABLE,
        False,
        "ref_audio may be a URL: http(s) of the public internet, s3://, gs:// or hf://; each is fetched once.",
    )

    # run and output
    out: Path = Field(
        description="The run folder.", json_schema_extra={"section": OUTPUT, "metavar": "DIR", "flags": ["--out", "-o"]}
    )
    format: Format = _option(OUTPUT, "wav", "wav of 16 bits, of 24 bits or of floats, flac, mp3, or Ogg Opus.")
    trim: bool = _option(OUTPUT, False, "Remove silence from the edges of clips, and of the pieces of split texts.")
    trim_margin_s: Pause = _option(OUTPUT, 0.1, "Seconds of silence that --trim leaves.", "S")
    checks: dict[CheckName, float | None] = _option(
        OUTPUT,
        {},
        f"Set the limit of an output check: {', '.join(CHECKS)}. May be repeated. 'off' (null in a recipe, None in "
        "Python) turns a check off; 0 does not: it is a limit like any other, of most checks the strictest.",
        "NAME=LIMIT",
        flags=["--check"],
    )
    row_time_limit: PositiveFloat | None = _option(
        OUTPUT, None, "Seconds a row may take, all attempts together. Default: no limit.", "S"
    )
    save_codes: bool = _option(OUTPUT, False, "Keep the codec codes (.npy) beside the audio.")
    keep_failed_audio: bool = _option(OUTPUT, False, "Keep the audio of failed attempts.")
    allow_mixed: bool = _option(OUTPUT, False, "Resume with settings that change the sound.")
    extend: bool = _option(OUTPUT, False, "Keep rows of the run folder that the table does not have.")
    prune: bool = _option(OUTPUT, False, "Remove the clips of rows that the table does not have.")
    overwrite: bool = _option(OUTPUT, False, "Start the run folder afresh.")
    skip_existing: Path | None = _option(
        OUTPUT, None, "Copy the clips that the run in DIR has made of the same rows, with the same settings.", "DIR"
    )
    redo: tuple[str, ...] = _option(
        OUTPUT, (), "Make the row of this id again, with another seed. May be repeated.", "ID"
    )
    shard: Annotated[str, Field(pattern=r"^\d+/\d+$")] | None = _option(
        OUTPUT, None, "Only part I of N of the rows; parts may run side by side.", "I/N"
    )
    progress: ProgressMode = _option(OUTPUT, "auto", "How to show progress; none: only errors and the last line.")


class JobOptions(TypedDict, total=False):
    """The keywords of `synth`, for type checkers: the keys of JobConfig except `data` and `out`."""

    model: str | None
    model_revision: str | None
    engine: str
    engine_options: Mapping[str, str]
    runner: RunnerName | None
    device: DeviceName
    dtype: DtypeName
    gpus: Sequence[int] | None
    profile: ProfileName | None
    placement: PlacementName
    cuda_graph: bool
    eager: bool
    max_num_seqs: int | None
    code2wav_mode: Code2WavModeName
    stall_timeout: float
    launcher: LauncherName
    ray_address: str | None
    greedy: bool
    temperature: float | None
    top_k: int | None
    top_p: float | None
    repetition_penalty: float | None
    subtalker_temperature: float | None
    subtalker_top_k: int | None
    subtalker_top_p: float | None
    min_new_tokens: int | None
    max_frames: int | None
    loop_frames: int | None
    seed: int
    attempts: int
    retry_changes_seed: bool
    takes: int
    non_streaming: bool | None
    x_vector_only: bool | None
    map: Mapping[str, str]
    encoding: str | None
    language: str | None
    speaker: str | None
    instruct: str | None
    split_text: int | None
    split_pause_s: float
    limit: int | None
    strict: bool
    audio_root: str | PathLike[str] | None
    allow_url: bool
    format: Format
    trim: bool
    trim_margin_s: float
    checks: Mapping[CheckName, float | None]
    row_time_limit: float | None
    save_codes: bool
    keep_failed_audio: bool
    allow_mixed: bool
    extend: bool
    prune: bool
    overwrite: bool
    skip_existing: str | PathLike[str] | None
    redo: Sequence[str]
    shard: str | None
    progress: ProgressMode


def build_config(options: Mapping[str, Any]) -> JobConfig:
    """Check `options` and return them as a JobConfig.

    Raises UsageError, one for all that is wrong: it names every key, its value and what is allowed.
    """
    try:
        config = JobConfig.model_validate(dict(options))
    except ValidationError as error:
        raise UsageError(" ".join(_sentence(detail) for detail in error.errors())) from None
    for name, needed in _NEEDS.items():
        if getattr(config, name) != JobConfig.model_fields[name].default and not getattr(config, needed):
            raise UsageError(f"The option {name!r} changes nothing without {needed!r}: give both, or neither.")
    return config


_NEEDS = {"split_pause_s": "split_text", "trim_margin_s": "trim"}
_HOW_TO_GIVE = {
    "data": "name one TABLE or more, files or globs (.parquet .arrow .csv .tsv .jsonl .txt), or 'data' in a recipe.",
    "out": "name the run folder with --out DIR, or 'out' in a recipe.",
}


def _sentence(detail: ErrorDetails) -> str:
    key = str(detail["loc"][0])
    if key == "checks" and len(detail["loc"]) > 1:
        known = ", ".join(CHECKS)
        return f"The check {detail['loc'][1]!r} does not exist, or its limit is not a number: there are {known}."
    if detail["type"] == "extra_forbidden":
        near = get_close_matches(key, JobConfig.model_fields, n=1)
        return f"There is no option {key!r}" + (f"; did you mean {near[0]!r}?" if near else ".")
    if detail["type"] == "missing":
        return f"The option {key!r} is missing: {_HOW_TO_GIVE[key]}"
    return f"The option {key!r} cannot be {detail['input']!r}: {detail['msg']}."
