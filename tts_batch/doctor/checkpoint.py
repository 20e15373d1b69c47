"""check_checkpoint: whether the files, the tokenizer and the weights of a checkpoint are good, and make a clip."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tts_batch.doctor import Finding
from tts_batch.engine.errors import EngineError
from tts_batch.engine.generation import generate
from tts_batch.engine.registry import open_engine
from tts_batch.engine.request import (
    FRAMES_PER_S,
    SAMPLE_RATE_HZ,
    EngineConfig,
    Reference,
    SamplingParams,
    SpeechRequest,
    SpeechResult,
)
from tts_batch.model.checkpoint import Checkpoint
from tts_batch.model.text_tokenizer import TextTokenizer
from tts_batch.worker.examine import find_fault

TEXT = "Hello."
MAX_FRAMES = 100  # 8 s: more than any voice needs for that word


def check_checkpoint(checkpoint: Checkpoint, device: str, dtype: str) -> Iterator[Finding]:
    """Check a resolved checkpoint, and make one short greedy clip with it on `device`, in `dtype`.

    The weights are loaded once, and every name and shape is compared with the network's. An engine that makes no
    progress ends by its own stall timeout, which is a finding like any other.
    """
    config = checkpoint.config
    revision = f", revision {checkpoint.revision}" if checkpoint.revision else ""
    yield Finding("ok", "checkpoint", f"{checkpoint.path}: {config.kind}, {config.size}{revision}")
    yield _check_tokenizer(checkpoint)
    try:
        engine = open_engine("native", EngineConfig(str(checkpoint.path), device=device, dtype=dtype))
    except EngineError as error:
        yield Finding("problem", "weights", str(error))
        return
    yield Finding("ok", "weights", "every tensor has the name and shape that the network expects")
    try:
        yield _check_clip(next(generate(engine, [_request(checkpoint)])))
    except EngineError as error:
        yield Finding("problem", "clip", str(error))
    finally:
        engine.close()


def _check_tokenizer(checkpoint: Checkpoint) -> Finding:
    ids = TextTokenizer(checkpoint.path).encode("Hello, 你好, こんにちは, 안녕하세요, привет!")
    size = checkpoint.config.talker.text_vocab_size
    fits = bool(ids) and max(ids) < size
    return Finding(
        "ok" if fits else "problem", "tokenizer", f"{len(ids)} ids for a test sentence, vocabulary of {size}"
    )


def _request(checkpoint: Checkpoint) -> SpeechRequest:
    kind = checkpoint.config.kind
    return SpeechRequest(
        request_id="doctor",
        text=TEXT,
        task=kind,
        seed=0,
        max_frames=MAX_FRAMES,
        sampling=SamplingParams(do_sample=False, subtalker_dosample=False),
        language="english",
        speaker=next(iter(checkpoint.config.speakers)) if kind == "custom_voice" else None,
        instruct="A calm voice." if kind == "voice_design" else None,
        reference=Reference("doctor", lambda: voice_samples(2.0)) if kind == "base" else None,
        x_vector_only=kind == "base",
    )


def voice_samples(seconds: float) -> NDArray[np.float32]:
    """A voice-like sound on 16-bit steps, so that a WAV file holds exactly these samples: float32 at 24 kHz."""
    t = np.arange(round(seconds * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    phase = 2 * np.pi * np.cumsum(130 * (1 + 0.1 * np.sin(2 * np.pi * 0.7 * t))) / SAMPLE_RATE_HZ
    voice = sum(np.sin(k * phase) / k for k in range(1, 20)) * (0.2 + np.abs(np.sin(2 * np.pi * 1.6 * t)))
    return (np.round(8_000 * voice) / 32_768).astype(np.float32)


def _check_clip(result: SpeechResult) -> Finding:
    failure = find_fault(result, MAX_FRAMES)
    if failure is None:
        return Finding("ok", "clip", f"{TEXT!r} became {result.num_frames / FRAMES_PER_S:.1f} s of audio")
    if failure.reason == "codec_budget_exhausted":
        return Finding("note", "clip", f"{TEXT!r} has no end within {MAX_FRAMES} frames")
    return Finding("problem", "clip", failure.message)
