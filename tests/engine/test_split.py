"""Placement split: Code2Wav on a second device, the same clips, and an error where it is unavailable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.engine.asking import ask, voice
from tests.engine.code2wav.test_chunked import Chunks
from tts_batch.engine.code2wav.decode_pool import DecodePool, PoolLimits
from tts_batch.engine.code2wav.decoder import ExactDecoder
from tts_batch.engine.devices import Platform, resolve_platform
from tts_batch.engine.errors import EngineConfigError
from tts_batch.engine.generation import generate
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.request import EngineConfig, SpeechResult

Open = Callable[..., NativeEngine]
TWO_CPUS = {"placement": "split", "code2wav_device": "cpu"}


def clips(engine: NativeEngine) -> dict[str, SpeechResult]:
    requests = [
        ask(f"{i}", task="base", seed=i, max_frames=3 + i, reference=voice(f"v{i % 2}", 0.4), x_vector_only=i == 1)
        for i in range(5)
    ]
    return {result.request_id: result for result in generate(engine, iter(requests))}


@pytest.mark.parametrize("runner", ["v1", "v2"])
@pytest.mark.parametrize("mode", ["utterance", "chunked"])
def test_clips_are_those_of_one_device(open_tiny: Open, runner: str, mode: str) -> None:
    settings = {"runner": runner, "max_num_seqs": 3, "code2wav_mode": mode}
    one = open_tiny("base", **settings)
    two = open_tiny("base", **settings, **TWO_CPUS, on_chunk=Chunks())
    assert two.info["code2wav_device"] == "cpu"
    expected, got = clips(one), clips(two)
    assert list(got) == list(expected)
    for name, clip in expected.items():
        assert np.array_equal(got[name].codes, clip.codes)
        assert np.array_equal(got[name].audio, clip.audio)


def test_codes_come_to_the_decoder_s_device() -> None:
    seen = []

    def decode(codes: torch.Tensor) -> torch.Tensor:
        seen.append((codes.device.type, tuple(codes.shape)))
        return torch.zeros(len(codes), codes.shape[2] * 1_920)

    delivered = []
    pool = DecodePool(ExactDecoder(decode), "meta", PoolLimits(max_frames=100))
    for frames in (3, 5):
        pool.add("row", torch.zeros(frames, 16, dtype=torch.int16), frames, delivered.append)
    pool.advance(drain=True)
    assert seen == [("meta", (2, 16, 5))]
    assert sorted(len(audio) for audio in delivered) == [3 * 1_920, 5 * 1_920]


def test_colocated_is_one_device() -> None:
    platform = resolve_platform(EngineConfig(model="", device="cpu"))
    assert platform.split_device is None
    assert platform.code2wav_device == platform.device
    assert Platform(platform.device, torch.float32, "v2", torch.device("meta")).code2wav_device.type == "meta"


@pytest.mark.parametrize("asked", ["cuda", "cuda:0", "cuda:2", "cuda:-1", "cuda:x"])
def test_the_second_device_is_one_beside_the_first(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    config = EngineConfig(model="", device="cuda", dtype="bfloat16", placement="split")
    assert resolve_platform(replace(config, code2wav_device="cuda:1")).code2wav_device == torch.device("cuda", 1)
    with pytest.raises(EngineConfigError, match=f"'{asked}' is not a second device: torch sees 2"):
        resolve_platform(replace(config, code2wav_device=asked))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"placement": "split"}, r"needs two devices, and torch sees 1 \(cpu\)"),
        (
            {"placement": "split", "code2wav_device": "cuda:1"},
            "'cuda:1' is no second cpu device",
        ),
        ({"code2wav_device": "cpu"}, "'cpu' goes with placement 'split' only"),
        ({"placement": "pipeline"}, "'pipeline' is not one of colocated, split: a model is never cut into a pipeline"),
    ],
)
def test_an_invalid_placement_is_refused_before_weights_are_read(settings: dict[str, str], message: str) -> None:
    with pytest.raises(EngineConfigError, match=message):
        NativeEngine(EngineConfig(model="/no/such/folder", device="cpu", **settings))
