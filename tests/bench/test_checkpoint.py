"""The random checkpoint for engines that read one: whole, in the official layout, and it ends when it may."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine.asking import ask, voice
from tts_batch.bench import checkpoint
from tts_batch.bench.checkpoint import end_when_allowed, write_random_checkpoint
from tts_batch.engine.generation import generate
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.request import EngineConfig, SamplingParams
from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.text_tokenizer import TextTokenizer
from tts_batch.model.tiny import build_tiny


@pytest.fixture
def small() -> Qwen3TTS:
    """Random weights of a small network in place of a released one."""
    tiny = resolve_checkpoint(str(build_tiny("tiny-random", "base")))
    return Qwen3TTS.random(tiny.config, tiny.codec, TextTokenizer(tiny.path), "cpu", torch.float32)


def test_its_clips_have_the_frames_that_are_asked_for(small: Qwen3TTS) -> None:
    end_when_allowed(small.network.state_dict(), small.config.talker.codec_eos_token_id)
    engine = NativeEngine.of_model(small, EngineConfig(model="", device="cpu"))
    rows = [
        ask(f"row{n}", task="base", speaker=None, reference=voice(), max_frames=20, seed=n,
            sampling=SamplingParams(min_new_tokens=n))
        for n in (2, 5, 11)
    ]  # fmt: skip
    results = {result.request_id: result for result in generate(engine, rows)}
    engine.close()
    assert {name: (r.finish_reason, r.num_frames) for name, r in results.items()} == {
        "row2": ("stop", 2),
        "row5": ("stop", 5),
        "row11": ("stop", 11),
    }


def test_it_is_written_once_and_whole(small: Qwen3TTS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "random_model", lambda shape, config: small)
    folder = write_random_checkpoint("1.7b", tmp_path / "random")
    assert resolve_checkpoint(str(folder)).config.talker.hidden_size == 2_048
    written = folder.stat().st_mtime_ns
    assert write_random_checkpoint("1.7b", tmp_path / "random").stat().st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == ["random"]
    assert {path.name for path in (folder / "speech_tokenizer").iterdir()} == {
        "config.json", "configuration.json", "model.safetensors", "preprocessor_config.json",
    }  # fmt: skip
