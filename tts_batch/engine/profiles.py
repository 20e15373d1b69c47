"""Profiles: the sizes of an engine, from the YAML files of tts_batch/profiles."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from importlib.resources import files
from typing import Any

import yaml

from tts_batch.engine.choices import PROFILES
from tts_batch.engine.devices import Platform
from tts_batch.engine.errors import EngineConfigError
from tts_batch.engine.request import EngineConfig

logger = logging.getLogger(__name__)

OVERRIDES_KEY = "on_cpu"  # the values that a CPU takes instead


@dataclass(frozen=True, slots=True)
class Profile:
    """The knobs of an engine. Runner v1 reads `max_num_seqs`, Code2Wav's and the loop limits only."""

    max_num_seqs: int  # rows decoded together
    frames_per_visit: int  # frames that run before the host looks at flags
    prefill_tokens: int  # most prompt tokens in one pass
    kv_share: float  # of the memory that is free once the weights are there, for the KV cache
    pages_per_row: int  # KV pages kept for each of `max_num_seqs` rows, where memory allows
    code2wav_frames: int  # decoded at once, padding included
    code2wav_pieces: int  # decoded at once
    code2wav_wait_s: float  # how long a piece waits for others
    repeated_frames: int  # loop detectors, see engine/loops.py; 0: off
    few_codes_frames: int
    experimental: bool = False
    # Optimisations, used wherever they are available; turning one off measures what it gains.
    references_together: bool = True  # encoded in shared passes, on CUDA
    fast_codec: bool = True  # code2wav/fast_decoder.py: runner v2 in bfloat16 on CUDA; else the exact decoder
    codec_skips_context: bool = True  # its convolutions run over few of the frames before the wanted ones
    codec_graphs: bool = True  # for chunks it is replayed from CUDA graphs, where it is the fast one
    small_batch_kernels: bool = True  # a layer's products for few rows, see engine/kernels/small_batch.py
    long_windows: bool = True  # more frames a visit where few rows decode: runner v2 on CUDA graphs, whole clips
    codec_stream: bool = True  # Code2Wav has a CUDA stream of its own, beside the talker's


def resolve_profile(config: EngineConfig, platform: Platform) -> tuple[str, Profile]:
    """The profile's name, and its knobs with what the configuration sets itself: `options` name knobs too.

    Raises EngineConfigError that names what is wrong.
    """
    name = config.profile or platform.default_profile
    profile = load_profile(name, platform.device.type)
    if profile.experimental:
        logger.warning("profile %s is experimental", name)
    options = {key: yaml.safe_load(value) for key, value in config.options.items()}
    _check("options", options)
    profile = replace(profile, **options)
    if config.max_num_seqs is not None:
        profile = replace(profile, max_num_seqs=config.max_num_seqs)
    if config.loop_frames is not None:
        profile = replace(profile, repeated_frames=config.loop_frames, few_codes_frames=config.loop_frames)
    return name, profile


def load_profile(name: str, device_type: str) -> Profile:
    """A profile as it is on a device. Raises EngineConfigError when there is none of that name."""
    if name not in PROFILES:
        raise EngineConfigError(f"profile {name!r} is not one of {', '.join(PROFILES)}.")
    text = (files("tts_batch") / "profiles" / f"{name}.yaml").read_text(encoding="utf-8")
    return parse_profile(name, text, device_type)


def parse_profile(name: str, text: str, device_type: str) -> Profile:
    """Every knob must be there, of its type, and nothing else. Raises EngineConfigError that names the key."""
    values = yaml.safe_load(text)
    if not isinstance(values, dict):
        raise EngineConfigError(f"profile {name!r} is not a mapping of knobs to values.")
    overrides = values.pop(OVERRIDES_KEY, {})
    _check(f"profile {name!r}", values)
    _check(f"profile {name!r}", overrides)
    missing = {field.name for field in fields(Profile) if field.default is MISSING} - values.keys()
    if missing:
        raise EngineConfigError(f"profile {name!r} lacks {', '.join(sorted(missing))}.")
    return Profile(**values | (overrides if device_type == "cpu" else {}))


def _check(source: str, values: Mapping[str, Any]) -> None:
    types = {field.name: field.type for field in fields(Profile)}
    for key, value in values.items():
        if key not in types:
            raise EngineConfigError(f"{source}: unknown key {key!r}; the keys are {', '.join(types)}.")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = {
            "bool": isinstance(value, bool),
            "int": is_number and isinstance(value, int) and value >= 0,
            "float": is_number and value >= 0,
        }
        if not fits[str(types[key])]:
            raise EngineConfigError(f"{source}: {key} cannot be {value!r}; it is a {types[key]}, not below 0.")
