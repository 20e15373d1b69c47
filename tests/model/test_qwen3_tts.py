"""The whole model: the released shapes, loading, random weights."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from torch import nn

from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.config import CodecConfig, ModelConfig, read_json
from tts_batch.model.prompt import build_prompt, embed_prompt
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.text_tokenizer import TextTokenizer
from tts_batch.model.tiny import build_tiny
from tts_batch.model.weights import WeightsError

RELEASED = files("tts_batch.model") / "released"


def count(module: nn.Module) -> tuple[int, int]:
    tensors = module.state_dict().values()
    return sum(tensor.numel() for tensor in tensors), len(tensors)


@pytest.mark.parametrize(
    ("name", "num_parameters", "num_tensors"),
    [
        ("custom_voice_0b6", 905_788_672, 402),
        ("base_0b6", 914_643_008, 478),
        ("custom_voice_1b7", 1_916_676_352, 404),
        ("voice_design_1b7", 1_916_676_352, 404),
        ("base_1b7", 1_928_677_440, 480),
    ],
)
def test_the_released_shapes(name: str, num_parameters: int, num_tensors: int) -> None:
    codec = CodecConfig.from_json(read_json(RELEASED / "speech_tokenizer.json"))
    model = Qwen3TTS(ModelConfig.from_json(read_json(RELEASED / f"{name}.json")), codec)
    assert count(model.network) == (num_parameters, num_tensors)
    assert count(model.speech_tokenizer) == (170_557_441, 496)


@pytest.mark.parametrize(
    ("kind", "size"),
    [("base", "1b7"), ("base", "0b6"), ("custom_voice", "1b7"), ("custom_voice", "0b6"), ("voice_design", "1b7")],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_kind_loads_whole(kind: str, size: str, dtype: torch.dtype) -> None:
    model = Qwen3TTS.load(resolve_checkpoint(str(build_tiny("tiny-random", kind, size))), "cpu", dtype)
    assert (model.speaker_encoder is not None) is (kind == "base")
    assert {tensor.dtype for tensor in model.network.state_dict().values()} == {dtype}
    assert {tensor.dtype for tensor in model.speech_tokenizer.state_dict().values()} == {torch.float32}
    for module in (model.network, model.speech_tokenizer):
        assert not any(tensor.is_meta for tensor in [*module.parameters(), *module.buffers()])
        assert not any(parameter.requires_grad for parameter in module.parameters())
        assert not module.training


def test_weights_of_another_kind_do_not_load(tmp_path: Path) -> None:
    shutil.copytree(build_tiny("tiny-random", "custom_voice"), tmp_path / "model")
    shutil.copy(build_tiny("tiny-random", "base") / "model.safetensors", tmp_path / "model")
    with pytest.raises(WeightsError, match=r"unexpected: speaker_encoder\."):
        Qwen3TTS.load(resolve_checkpoint(str(tmp_path / "model")), "cpu", torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_random_model_stays_finite(dtype: torch.dtype) -> None:
    checkpoint = resolve_checkpoint(str(build_tiny("tiny-random", "voice_design")))
    tokenizer = TextTokenizer(checkpoint.path)
    model = Qwen3TTS.random(checkpoint.config, checkpoint.codec, tokenizer, "cpu", dtype, seed=3)
    prompt = build_prompt(model.config, tokenizer, text="Hello.", task="voice_design", instruct="A deep voice.")
    embeds = embed_prompt(model.talker, prompt, None, None)
    assert embeds.dtype == dtype
    assert embeds.isfinite().all()
    assert model.speech_tokenizer.decode(torch.zeros(3, 16, dtype=torch.int64)).isfinite().all()
