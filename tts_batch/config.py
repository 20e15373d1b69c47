"""JobConfig: every setting of a run, checked and named once for the command line, recipes and the notebook door."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from tts_batch.errors import UsageError

Format = Literal["wav"]
Progress = Literal["auto", "bar", "plain", "none"]


class JobConfig(BaseModel):
    """What `tts-batch synth` does, whole. Unknown keys are errors. Paths here are relative to the working folder."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    data: tuple[str, ...] = Field(
        min_length=1, description="Input tables: files or globs (.parquet .csv .tsv .jsonl .txt)."
    )
    out: Path = Field(description="The run folder.")

    # model and engine
    model: str | None = Field(None, description="Checkpoint folder, hub id, 'tiny' or 'tiny-random'.")
    model_revision: str | None = Field(None, description="Hub revision of --model.")
    engine: str = Field("native", description="'native', 'vllm' or 'package.module:factory'.")
    runner: Literal["v1", "v2"] | None = Field(None, description="None: what the platform runs.")
    device: Literal["auto", "cpu", "cuda", "xpu", "npu", "musa"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    gpus: tuple[int, ...] | None = Field(None, description="Positions among the visible devices. None: all.")
    profile: str | None = None
    placement: Literal["colocated", "split"] = "colocated"
    cuda_graph: bool = True
    eager: bool = False
    max_num_seqs: Annotated[int, Field(ge=1)] | None = None
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
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    attempts: Annotated[int, Field(ge=1)] = 1
    takes: Annotated[int, Field(ge=1)] = 1
    non_streaming: bool | None = None
    x_vector_only: bool | None = Field(None, description="Default for rows without the column.")

    # reading the table
    map: dict[str, str] = Field(default_factory=dict, description="Our column name -> the table's.")
    language: str | None = Field(None, description="Default for rows without one.")
    speaker: str | None = Field(None, description="Default for rows without one.")
    instruct: str | None = Field(None, description="Default for rows without one.")
    limit: Annotated[int, Field(ge=1)] | None = None
    strict: bool = Field(False, description="Unknown columns are errors.")
    audio_root: Path | None = Field(None, description="The only folder that ref_audio paths may name.")
    allow_url: bool = Field(False, description="ref_audio may be an http(s) URL of the public internet.")

    # writing
    format: Format = "wav"
    save_codes: bool = False
    keep_failed_audio: bool = False
    allow_mixed: bool = False
    overwrite: bool = False
    shard: Annotated[str, Field(pattern=r"^\d+/\d+$")] | None = None
    progress: Progress = "auto"


def build_config(options: Mapping[str, Any]) -> JobConfig:
    """The job that `options` describe. Whatever is wrong with them becomes one UsageError that names every key."""
    try:
        return JobConfig.model_validate(dict(options))
    except ValidationError as error:
        raise UsageError(" ".join(_sentence(detail) for detail in error.errors())) from None


def _sentence(detail: ErrorDetails) -> str:
    key = str(detail["loc"][0])
    if detail["type"] == "extra_forbidden":
        near = get_close_matches(key, JobConfig.model_fields, n=1)
        return f"There is no option {key!r}" + (f"; did you mean {near[0]!r}?" if near else ".")
    if detail["type"] == "missing":
        return f"The option {key!r} is missing: {JobConfig.model_fields[key].description}"
    return f"The option {key!r} cannot be {detail['input']!r}: {detail['msg']}."
