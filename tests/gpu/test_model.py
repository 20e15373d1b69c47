"""The network on a CUDA device against itself on the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.model.attention import attend_causal
from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.prompt import build_prompt, embed_prompt
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.tiny import build_tiny

VOICE = {"num_ref_frames": 2, "has_x_vector": True, "ref_text": "Hi there."}


@torch.inference_mode()
def prompt_and_logits(device: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    model = Qwen3TTS.load(resolve_checkpoint(str(build_tiny("tiny-random", "base"))), device, dtype)
    request = {"text": "Hello world.", "task": "base", "language": "english"} | VOICE
    prompt = build_prompt(model.config, model.text_tokenizer, **request)
    embeds = embed_prompt(model.talker, prompt, torch.arange(32).reshape(2, 16), torch.full((64,), 0.5))
    assert embeds.device.type == device
    stack = model.talker.stack
    hidden = stack(embeds, *stack.rotary(torch.arange(len(embeds), device=device)), attend_causal)
    return embeds.cpu(), model.talker.codec_head(hidden).cpu()


@pytest.mark.parametrize(("dtype", "embeds", "logits"), [(torch.float32, 2e-6, 1e-4), (torch.bfloat16, 0.05, 0.5)])
def test_the_gpu_agrees_with_the_cpu(dtype: torch.dtype, embeds: float, logits: float) -> None:
    for ours, theirs, bound in zip(
        prompt_and_logits("cuda", dtype), prompt_and_logits("cpu", dtype), (embeds, logits), strict=True
    ):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, theirs, atol=bound, rtol=0)
