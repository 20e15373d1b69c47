"""Opens the engines to measure, and times that."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from tts_batch.bench import engines
from tts_batch.bench.checkpoint import write_random_checkpoint
from tts_batch.cache import cache_folder
from tts_batch.engine.request import Engine, EngineConfig
from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.text_tokenizer import TextTokenizer


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
    network = engines.random_model(shape, config) if shape else engines.load_model(config)
    loaded_s = time.monotonic()
    engine, preparer = engines.open_bench_engine(network, config)
    opened_s = time.monotonic()
    return OpenedEngine(
        engine, network.text_tokenizer, loaded_s - started_s, opened_s - loaded_s, preparer.forget_references
    )


def open_vllm(shape: str | None, config: EngineConfig) -> OpenedEngine:
    """vLLM-Omni on the checkpoint of the configuration, or on one of random weights that is written for it."""
    from tts_batch.engine.vllm.engine import VllmEngine  # which needs more packages

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
