"""The engines to measure, opened in two steps: a workload needs the tokenizer, and an engine the longest budget."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from tts_batch.bench import engines
from tts_batch.bench.checkpoint import write_random_checkpoint
from tts_batch.cache import cache_folder
from tts_batch.engine.devices import resolve_platform
from tts_batch.engine.native import out_of_memory_reported
from tts_batch.engine.request import Engine, EngineConfig
from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.text_tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class Loaded:
    """What an engine is opened on. `open` also returns how its voices are forgotten."""

    tokenizer: TextTokenizer
    open: Callable[[EngineConfig], tuple[Engine, Callable[[], None]]]


def load_native(shape: str | None, config: EngineConfig) -> Loaded:
    """The model of our own engine: random weights of a released shape, or the checkpoint of the configuration."""
    with out_of_memory_reported(resolve_platform(config)):
        model = engines.random_model(shape, config) if shape else engines.load_model(config)

    def open_engine(config: EngineConfig) -> tuple[Engine, Callable[[], None]]:
        engine, preparer = engines.open_bench_engine(model, config, owns_model=True)
        return engine, preparer.forget_references

    return Loaded(model.text_tokenizer, open_engine)


def load_vllm(shape: str | None, config: EngineConfig) -> Loaded:
    """A checkpoint for vLLM-Omni: that of the configuration, or one of random weights that is written for it."""
    from tts_batch.engine.vllm.engine import VllmEngine  # which needs more packages

    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()  # what an engine that was measured before held
    cache = cache_folder()
    folder = str(write_random_checkpoint(shape, cache / f"random-{shape}", cache)) if shape else config.model
    checkpoint = resolve_checkpoint(folder, config.model_revision)

    def open_engine(config: EngineConfig) -> tuple[Engine, Callable[[], None]]:
        return VllmEngine(replace(config, model=folder)), lambda: None

    return Loaded(TextTokenizer(checkpoint.path), open_engine)
