"""References encoded together on a CUDA device: what each is alone, and no waiting for the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.engine.asking import hum
from tts_batch.engine.voices.encoder import ReferenceEncoder
from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.tiny import build_tiny


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # of torch, that it sees some waits only
@torch.inference_mode()
def test_together_is_what_each_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model = Qwen3TTS.load(resolve_checkpoint(str(build_tiny("tiny-random", "base"))), "cuda", torch.float32)
    breath = np.random.default_rng(5).normal(scale=0.01, size=8 * 24_000).astype(np.float32)
    clips = [hum(n / 24_000, 80.0 + 7 * i) + breath[:n] for i, n in enumerate(range(12_000, 180_000, 7_777))]
    encoder = ReferenceEncoder(model)
    encoder.encode(clips[:1], [True])  # libraries load

    torch.cuda.set_sync_debug_mode("error")
    try:
        voices = encoder.encode(clips, [True] * len(clips))
    finally:
        torch.cuda.set_sync_debug_mode("default")

    equal = []
    for clip, (x_vector, codes) in zip(clips, voices, strict=True):
        alone = model.speaker_encoder.embed(clip)
        assert torch.cosine_similarity(x_vector, alone, dim=0) > 1 - 1e-6  # the mel alone is of the CPU
        expected = model.speech_tokenizer.encode(clip)
        assert codes.shape == expected.shape
        equal.append((codes == expected).cpu())
    assert torch.cat(equal).float().mean() > 0.98  # near ties
    assert torch.stack([frames[-1] for frames in equal]).float().mean() > 0.9
