"""The engines to measure: a released shape with random weights, or a checkpoint."""

from __future__ import annotations

import json
from importlib.resources import files

import torch

from tts_batch.cache import cache_folder
from tts_batch.engine.assemble import require_memory
from tts_batch.engine.devices import resolve_platform
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.prepare import Preparer
from tts_batch.engine.profiles import resolve_profile
from tts_batch.engine.request import EngineConfig
from tts_batch.errors import UsageError
from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.config import CodecConfig, ModelConfig
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.text_tokenizer import TextTokenizer
from tts_batch.model.tiny import build_tiny

SHAPES = {"1.7b": "base_1b7", "0.6b": "base_0b6"}


def random_model(shape: str, config: EngineConfig) -> Qwen3TTS:
    """The Base model of a released shape, a key of SHAPES, with random weights and `tiny-random`'s text tokenizer."""
    folder = files("tts_batch.model") / "released"
    model_config = ModelConfig.from_json(json.loads((folder / f"{SHAPES[shape]}.json").read_text()))
    codec = CodecConfig.from_json(json.loads((folder / "speech_tokenizer.json").read_text()))
    platform = resolve_platform(config)
    tokenizer = TextTokenizer(build_tiny("tiny-random", "base", cache_dir=cache_folder()))
    require_memory(model_config, codec, platform, config)
    return Qwen3TTS.random(model_config, codec, tokenizer, platform.device, platform.dtype, torch.float32)


def base_checkpoint(model: str) -> str:
    """The folder of the checkpoint that --model names. Raises UsageError unless it is a Base checkpoint."""
    from tts_batch.plan.models import find_checkpoint  # pydantic stays out of a bench without a checkpoint

    checkpoint = find_checkpoint(model, task="base")
    if checkpoint.config.kind != "base":
        raise UsageError(
            f"--model {model} is {checkpoint.config.kind}: the workloads clone voices, so give a Base checkpoint."
        )
    return str(checkpoint.path)


def load_model(config: EngineConfig) -> Qwen3TTS:
    """The model of the checkpoint that a configuration names."""
    platform = resolve_platform(config)
    return Qwen3TTS.load(resolve_checkpoint(config.model, config.model_revision), platform.device, platform.dtype)


def open_bench_engine(model: Qwen3TTS, config: EngineConfig, owns_model: bool = False) -> tuple[NativeEngine, Preparer]:
    """An engine on a model, and its preparer, which encodes and forgets voices while the engine is idle.

    With `owns_model`, weights that the engine does not read are freed, as `NativeEngine` does with a checkpoint's.
    """
    _, profile = resolve_profile(config, resolve_platform(config))
    preparer = Preparer(model, references_together=profile.references_together)
    return NativeEngine.of_model(model, config, preparer, owns_model), preparer
