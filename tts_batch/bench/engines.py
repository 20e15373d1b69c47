"""The engines to measure: a released shape with random weights, or a checkpoint."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files

import torch

from tts_batch.cache import cache_folder
from tts_batch.engine.compute_loop import BURST
from tts_batch.engine.devices import resolve_platform
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.prepare import Preparer
from tts_batch.engine.profiles import resolve_profile
from tts_batch.engine.request import Engine, EngineConfig, SpeechRequest
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


@torch.inference_mode()
def encode_references(preparer: Preparer, requests: Sequence[SpeechRequest]) -> None:
    """Encode all voices that are not cached yet, in bursts as an engine would. The preparer's engine must be idle."""
    for first in range(0, len(requests), BURST):
        burst = requests[first : first + BURST]
        preparer.load_ahead(burst)
        for request in burst:
            preparer.load(request)
        preparer.encode_loaded()


@dataclass(frozen=True, slots=True)
class OpenedEngine:
    """An engine to measure, how long its start took, and what a workload needs beside it."""

    engine: Engine
    tokenizer: TextTokenizer
    load_s: float  # of the model, where the engine does not read it itself
    open_s: float
    forget_references: Callable[[], None]


def open_native(shape: str | None, config: EngineConfig) -> OpenedEngine:
    """Our own engine, with random weights of a released shape, or on the checkpoint of the configuration."""
    started_s = time.monotonic()
    network = random_model(shape, config) if shape else load_model(config)
    loaded_s = time.monotonic()
    engine, preparer = open_bench_engine(network, config)
    opened_s = time.monotonic()
    return OpenedEngine(
        engine, network.text_tokenizer, loaded_s - started_s, opened_s - loaded_s, preparer.forget_references
    )


def open_vllm(shape: str | None, config: EngineConfig) -> OpenedEngine:
    """vLLM-Omni on the checkpoint of the configuration, or on one of random weights that is written for it."""
    from tts_batch.bench.checkpoint import write_random_checkpoint
    from tts_batch.engine.vllm.engine import VllmEngine

    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()  # what an engine that was measured before held
    if shape:
        cache = cache_folder()
        config = replace(config, model=str(write_random_checkpoint(shape, cache / f"random-{shape}", cache)))
    started_s = time.monotonic()
    engine = VllmEngine(config)
    tokenizer = TextTokenizer(resolve_checkpoint(config.model, config.model_revision).path)
    return OpenedEngine(engine, tokenizer, 0.0, time.monotonic() - started_s, lambda: None)


def open_bench_engine(model: Qwen3TTS, config: EngineConfig) -> tuple[NativeEngine, Preparer]:
    """An engine on a model, and its preparer, which encodes and forgets voices while the engine is idle."""
    _, profile = resolve_profile(config, resolve_platform(config))
    preparer = Preparer(model, references_together=profile.references_together)
    return NativeEngine.of_model(model, config, preparer), preparer
