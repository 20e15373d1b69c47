"""What an EngineConfig means to vLLM-Omni: a profile's sizes, and the deploy file made of them.

The deploy file is complete: no `base_config`, no `platforms`, nothing left to the defaults of a release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from tts_batch.engine.choices import CODE2WAV_MODES, PLACEMENTS, PROFILES, RUNNERS
from tts_batch.engine.errors import EngineConfigError
from tts_batch.engine.request import NUM_CODEBOOKS, EngineConfig

MAX_MODEL_LEN = 4_096  # positions of the talker: prompt and frames
MAX_CODEC_TOKENS = 65_536  # of Code2Wav for one request: 16 for each frame, those of the reference included
LEFT_CONTEXT_FRAMES = 72  # the attention window of the decoder
CHUNK_FRAMES = 25  # decoded at a time in chunked mode
FRAME_S = 0.5
"""How much longer a request may take for each frame of its budget, beside `stall_timeout_s`."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The sizes of one of the profiles, as in the deploy file of the same name that comes with vLLM-Omni."""

    max_num_seqs: int  # rows that the talker decodes together, and requests in flight
    code2wav_seqs: int
    code2wav_batch: int  # decoded together
    code2wav_graphs: int  # batches from 1 to this many are replayed from CUDA graphs


PROFILE_SIZES: Mapping[str, Profile] = {
    "basic": Profile(64, 64, 4, 1),
    "b2": Profile(64, 10, 2, 2),
    "b4": Profile(64, 10, 4, 4),
    "throughput": Profile(128, 32, 8, 8),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """An EngineConfig, resolved and checked. The fields of OPTIONS can be set by `EngineConfig.options`."""

    profile: str
    sizes: Profile
    runner: str
    is_eager: bool
    is_split: bool
    whole_utterance: bool
    stall_timeout_s: float
    max_frames: int  # the longest budget of a request
    async_chunk: bool = False
    gpu_memory_utilization: float = 0.3  # of each of the two stages, of the whole memory of its GPU
    start_timeout_s: float = 840.0  # from the start of the host until both stages are ready; below the worker's own
    subtalker_dosample: bool = True
    subtalker_temperature: float = 0.9
    subtalker_top_k: int = 50
    subtalker_top_p: float = 1.0

    @property
    def subtalker(self) -> dict[str, Any]:
        """How the code predictor samples: one way for all requests of this engine."""
        return {name: getattr(self, name) for name in _SUBTALKER}

    def deadline_s(self, max_frames: int) -> float:
        """How long a request of this budget may take, from its submission to its result."""
        return self.stall_timeout_s + FRAME_S * max_frames

    @property
    def longest_deadline_s(self) -> float:
        """Of the longest budget: what vLLM-Omni's own wait between the stages (600 s otherwise) is set to."""
        return self.deadline_s(self.max_frames)


_SUBTALKER = ("subtalker_dosample", "subtalker_temperature", "subtalker_top_k", "subtalker_top_p")
OPTIONS = ("async_chunk", "gpu_memory_utilization", "start_timeout_s", *_SUBTALKER)


def resolve_settings(config: EngineConfig) -> Settings:
    """Raises EngineConfigError that names what this engine cannot do, or does not know."""
    name = config.profile or "throughput"
    for key, value, allowed in (
        ("profile", name, PROFILES),
        ("runner", config.runner or "v2", RUNNERS),
        ("placement", config.placement, PLACEMENTS),
        ("code2wav_mode", config.code2wav_mode, CODE2WAV_MODES),
        ("device", config.device, ("auto", "cuda")),
        ("dtype", config.dtype, ("auto", "bfloat16")),
    ):
        if value not in allowed:
            raise EngineConfigError(f"engine vllm: {key} {value!r} is not one of {', '.join(allowed)}.")
    if config.on_chunk is not None:
        raise EngineConfigError("engine vllm returns whole clips only: to hear audio while it is made, use native.")
    if config.max_num_seqs is not None and config.max_num_seqs < 1:
        raise EngineConfigError(f"max_num_seqs cannot be {config.max_num_seqs}: it is at least 1.")
    if not config.stall_timeout_s > 0:
        raise EngineConfigError(f"stall_timeout_s cannot be {config.stall_timeout_s}: it is above 0.")
    sizes = PROFILE_SIZES[name]
    if config.max_num_seqs is not None:
        sizes = replace(sizes, max_num_seqs=config.max_num_seqs)
    is_whole = config.code2wav_mode == "utterance"
    settings = Settings(
        profile=name,
        sizes=sizes,
        runner=config.runner or "v2",
        is_eager=config.eager or not config.cuda_graph,
        is_split=config.placement == "split",
        whole_utterance=is_whole,
        stall_timeout_s=config.stall_timeout_s,
        max_frames=config.max_frames or MAX_MODEL_LEN,
        async_chunk=not is_whole,
    )
    return replace(settings, **{key: _option(key, text) for key, text in config.options.items()})


def deploy_values(settings: Settings) -> dict[str, Any]:
    """The deploy file as a mapping."""
    sizes = settings.sizes
    seconds = int(settings.longest_deadline_s)
    transfer = {
        "codec_streaming": True,
        "connector_get_sleep_s": 0.01,
        "connector_get_max_wait_first_chunk": seconds,
        "connector_get_max_wait": seconds,
        "codec_chunk_frames": CHUNK_FRAMES,
        "codec_left_context_frames": LEFT_CONTEXT_FRAMES,
        "ref_code_context_frames": LEFT_CONTEXT_FRAMES,
        "initial_codec_chunk_frames": 1,
        "code_predictor_prefix_graphs": False,
        "ref_audio_artifact_cache_max_entries": 1_024,
        "decode_batch_max_size": sizes.code2wav_batch,
        "decode_cudagraph_batch_sizes": list(range(1, sizes.code2wav_graphs + 1)),
        "decode_enable_tf32": False,
    }
    common = {
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "enforce_eager": settings.is_eager,
        "trust_remote_code": True,  # of transformers' classes for this model, which vLLM-Omni itself registers
        "enable_prefix_caching": False,  # all prompts are the same placeholder ids
        "async_scheduling": True,
    }
    talker = {
        "stage_id": 0,
        "devices": "0",
        "max_num_seqs": sizes.max_num_seqs,
        "max_num_batched_tokens": max(512, sizes.max_num_seqs),
        "max_model_len": MAX_MODEL_LEN,
        **common,
        "output_connectors": {"to_stage_1": _CONNECTOR},
        "default_sampling_params": {
            "temperature": 0.9,
            "top_k": 50,
            "max_tokens": MAX_MODEL_LEN,
            "min_tokens": 2,
            "repetition_penalty": 1.05,
        },
        "silence_ban_frames": 0,
        "subtalker_sampling_params": {
            "do_sample": settings.subtalker_dosample,
            "temperature": settings.subtalker_temperature,
            "top_k": settings.subtalker_top_k,
            "top_p": settings.subtalker_top_p,
        },
    }
    code2wav = {
        "stage_id": 1,
        "devices": "1" if settings.is_split else "0",
        "dtype": "bfloat16",
        "max_num_seqs": sizes.code2wav_seqs,
        "max_num_batched_tokens": MAX_CODEC_TOKENS,
        "max_model_len": MAX_CODEC_TOKENS,
        **common,
        "input_connectors": {"from_stage_0": _CONNECTOR},
        "default_sampling_params": {
            "temperature": 0.0,
            "top_p": 1.0,
            "top_k": -1,
            "max_tokens": MAX_CODEC_TOKENS,
            "repetition_penalty": 1.0,
        },
    }
    return {
        "model_runner": settings.runner,
        "async_chunk": settings.async_chunk,
        "connectors": {_CONNECTOR: {"name": "SharedMemoryConnector", "extra": transfer}},
        "stages": [talker, code2wav],
    }


_CONNECTOR = "connector_of_shared_memory"


def write_deploy_file(settings: Settings, folder: Path) -> Path:
    """Write the deploy file into a folder and return its path."""
    path = folder / "deploy.yaml"
    path.write_text(yaml.safe_dump(deploy_values(settings), sort_keys=False), encoding="utf-8")
    return path


def fits_code2wav(num_reference_frames: int, max_frames: int) -> bool:
    """Whether Code2Wav can take the longest clip of a request in one piece, with its reference before it."""
    return NUM_CODEBOOKS * (num_reference_frames + max_frames) < MAX_CODEC_TOKENS


def _option(key: str, text: str) -> Any:
    types = {field.name: str(field.type) for field in fields(Settings)}
    if key not in OPTIONS:
        raise EngineConfigError(f"engine vllm has no option {key!r}; there are {', '.join(OPTIONS)}.")
    value = yaml.safe_load(text)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = {
        "bool": isinstance(value, bool),
        "int": is_number and isinstance(value, int) and value >= 0,
        "float": is_number and value > 0 and (value <= 1 or key not in _SHARES),
    }[types[key]]
    if not fits:
        range_ = ", above 0 and at most 1" if key in _SHARES else ""
        raise EngineConfigError(f"engine vllm: option {key} cannot be {text!r}; it is a {types[key]}{range_}.")
    return float(value) if types[key] == "float" else value


_SHARES = ("gpu_memory_utilization", "subtalker_top_p")
