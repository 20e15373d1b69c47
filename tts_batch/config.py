"""JobConfig: every setting of a run, checked and named once for the command line, recipes and the notebook door."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from tts_batch.errors import UsageError

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
Progress = Literal["auto", "bar", "plain", "none"]


class JobConfig(BaseModel):
    """What `tts-batch synth` does, whole. Unknown keys are errors. Paths here are relative to the working folder."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())

    data: tuple[str, ...] = Field(
        min_length=1, description="Input tables: files or globs (.parquet .csv .tsv .jsonl .txt)."
    )
    out: Path = Field(description="The run folder.")

    # model and engine
    model: str | None = Field(None, description="Checkpoint folder, hub id, 'tiny' or 'tiny-random'.")
    model_revision: str | None = Field(None, description="Hub revision of --model.")
    engine: str = Field("native", description="'native' or 'package.module:factory'; 'vllm' is to come.")
    runner: Literal["v1", "v2"] | None = Field(None, description="None: what the platform runs.")
    device: Literal["auto", "cpu", "cuda", "xpu", "npu", "musa"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    gpus: tuple[int, ...] | None = Field(None, description="Positions among the visible devices. None: all.")
    profile: Literal["basic", "b2", "b4", "throughput"] | None = None
    placement: Literal["colocated", "split"] = "colocated"
    cuda_graph: bool = True
    eager: bool = False
    code2wav_mode: Literal["utterance", "chunked"] = "utterance"
    max_num_seqs: Annotated[int, Field(ge=1)] | None = None
    stall_timeout: Annotated[float, Field(gt=0)] = Field(
        30.0, description="Seconds that anything in the engine may stand still; on a CPU twenty times as long."
    )
    launcher: Literal["local", "ray"] = "local"

    # sampling: None means the checkpoint's generation_config.json
    greedy: bool = Field(False, description="No sampling, in the talker and in the code predictor.")
    temperature: Annotated[float, Field(gt=0)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    subtalker_temperature: Annotated[float, Field(gt=0)] | None = None
    subtalker_top_k: Annotated[int, Field(ge=0)] | None = None
    subtalker_top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_new_tokens: Annotated[int, Field(ge=0)] | None = None
    max_frames: Annotated[int, Field(ge=1)] | None = Field(None, description="Codec budget of every row.")
    loop_frames: Annotated[int, Field(ge=0)] | None = Field(
        None, description="A take that loops for so many frames ends as failed; 0: never. None: the profile's 75."
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    attempts: Annotated[int, Field(ge=1)] = 1
    retry_changes_seed: bool = Field(False, description="Further attempts of a row may leave its explicit seed.")
    takes: Annotated[int, Field(ge=1)] = 1
    row_time_limit: Annotated[float, Field(gt=0)] | None = Field(None, description="Seconds, all attempts together.")
    checks: dict[CheckName, float | None] = Field(
        default_factory=dict, description="Limits of output checks, where not the default; None: off."
    )
    non_streaming: bool | None = None
    x_vector_only: bool | None = Field(None, description="Default for rows without the column.")

    # long texts
    split_text: Annotated[int, Field(ge=20)] | None = Field(
        None, description="Speak longer texts in pieces of at most so many characters, each a request of its own."
    )
    split_pause_s: Annotated[float, Field(ge=0, le=60)] = Field(0.3, description="Silence between two pieces.")

    # reading the table
    map: dict[str, str] = Field(default_factory=dict, description="Our column name -> the table's.")
    encoding: str | None = Field(
        None, description="Encoding of text tables without a byte order mark, as cp1252. None: UTF-8."
    )
    language: str | None = Field(None, description="Default for rows without one.")
    speaker: str | None = Field(None, description="Default for rows without one.")
    instruct: str | None = Field(None, description="Default for rows without one.")
    limit: Annotated[int, Field(ge=1)] | None = None
    strict: bool = Field(False, description="Unknown columns are errors.")
    audio_root: Path | None = Field(None, description="The only folder that ref_audio paths may name.")
    allow_url: bool = Field(False, description="ref_audio may be an http(s) URL of the public internet.")

    # writing
    format: Format = "wav"
    trim: bool = Field(False, description="Take the silence off the edges of clips, and of the pieces of split texts.")
    trim_margin_s: Annotated[float, Field(ge=0, le=60)] = Field(0.1, description="What --trim leaves of it.")
    save_codes: bool = False
    keep_failed_audio: bool = False
    allow_mixed: bool = False
    overwrite: bool = False
    redo: tuple[str, ...] = Field((), description="Ids of rows to make again, with another draw.")
    shard: Annotated[str, Field(pattern=r"^\d+/\d+$")] | None = None
    progress: Progress = "auto"


def build_config(options: Mapping[str, Any]) -> JobConfig:
    """The job that `options` describe. Whatever is wrong with them becomes one UsageError that names every key."""
    try:
        config = JobConfig.model_validate(dict(options))
    except ValidationError as error:
        raise UsageError(" ".join(_sentence(detail) for detail in error.errors())) from None
    for name, needs in _NEEDS.items():
        if getattr(config, name) != JobConfig.model_fields[name].default and not getattr(config, needs):
            raise UsageError(f"The option {name!r} changes nothing without {needs!r}: give both, or neither.")
    return config


_NEEDS = {"split_pause_s": "split_text", "trim_margin_s": "trim"}
_HOW_TO_GIVE = {
    "data": "name one TABLE or more, files or globs (.parquet .arrow .csv .tsv .jsonl .txt), or 'data' in a recipe.",
    "out": "name the run folder with --out DIR, or 'out' in a recipe.",
}


def _sentence(detail: ErrorDetails) -> str:
    key = str(detail["loc"][0])
    if key == "checks" and len(detail["loc"]) > 1:
        known = ", ".join(get_args(CheckName))
        return f"The check {detail['loc'][1]!r} does not exist, or its limit is no number: there are {known}."
    if detail["type"] == "extra_forbidden":
        near = get_close_matches(key, JobConfig.model_fields, n=1)
        return f"There is no option {key!r}" + (f"; did you mean {near[0]!r}?" if near else ".")
    if detail["type"] == "missing":
        return f"The option {key!r} is missing: {_HOW_TO_GIVE[key]}"
    return f"The option {key!r} cannot be {detail['input']!r}: {detail['msg']}."
