"""Placement split on two CUDA devices: the same codes and clips, each stage's memory where it belongs, no waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.engine.asking import ask, voice
from tests.engine.code2wav.test_chunked import Chunks
from tts_batch.engine.code2wav.decode_pool import DecodePool, PoolLimits
from tts_batch.engine.code2wav.decoder import ExactDecoder
from tts_batch.engine.generation import generate
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.request import EngineConfig, SpeechRequest
from tts_batch.model.tiny import build_tiny

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")

Open = Callable[..., NativeEngine]
SECOND_LONG = 2_000_000_000  # cycles of a device: about one second


@pytest.fixture
def open_cuda(tmp_path: Path) -> Iterator[Open]:
    engines: list[NativeEngine] = []

    def open_engine(**settings: object) -> NativeEngine:
        folder = str(build_tiny("tiny-random", "base"))
        config = {"model": folder, "device": "cuda", "runner": "v2", "max_num_seqs": 8, "cache_dir": str(tmp_path)}
        engines.append(NativeEngine(EngineConfig(**config | settings)))
        return engines[-1]

    yield open_engine
    for engine in engines:
        engine.close()


def requests() -> list[SpeechRequest]:
    return [
        ask(f"{i}", task="base", reference=voice(f"v{i % 3}", 0.5), x_vector_only=i % 4 == 1, max_frames=3 + 5 * i,
            seed=i)
        for i in range(24)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "float32"},
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "eager": True},
        {"dtype": "bfloat16", "options": {"codec_stream": "false"}},
        {"dtype": "float32", "runner": "v1"},
    ],
    ids=str,
)
def test_clips_are_those_of_one_device(open_cuda: Open, settings: dict[str, object]) -> None:
    clips = {}
    for placement in ("colocated", "split"):
        engine = open_cuda(placement=placement, **settings)
        assert engine.info["code2wav_device"] == ("cuda:1" if placement == "split" else "cuda")
        clips[placement] = {result.request_id: result for result in generate(engine, requests())}
        engine.close()
    tolerance = 5e-5 if settings["dtype"] == "float32" else 0.05
    for name, clip in clips["colocated"].items():
        other = clips["split"][name]
        assert (other.finish_reason, other.num_frames) == (clip.finish_reason, clip.num_frames)
        assert np.array_equal(other.codes, clip.codes)
        np.testing.assert_allclose(other.audio, clip.audio, rtol=0, atol=tolerance)


def test_chunks_are_the_clip(open_cuda: Open) -> None:
    chunks = Chunks()
    engine = open_cuda(placement="split", dtype="bfloat16", code2wav_mode="chunked", on_chunk=chunks)
    for result in generate(engine, requests()):
        assert np.array_equal(np.concatenate(chunks.audio[result.request_id]), result.audio)


@pytest.mark.parametrize(("mode", "decoded"), [("utterance", "eager"), ("chunked", "hit")])
def test_each_stage_keeps_to_its_device(open_cuda: Open, mode: str, decoded: str) -> None:
    before = [torch.cuda.memory_allocated(device) for device in range(2)]
    engine = open_cuda(placement="split", dtype="bfloat16", code2wav_mode=mode, on_chunk=Chunks())
    assert engine.info["code2wav_device"] == "cuda:1"
    assert all(torch.cuda.memory_allocated(device) > before[device] for device in range(2))
    torch.cuda.reset_peak_memory_stats(1)
    idle_bytes = torch.cuda.memory_allocated(1)
    assert all(result.finish_reason in ("stop", "length") for result in generate(engine, requests()))
    assert torch.cuda.max_memory_allocated(1) > idle_bytes
    assert torch.cuda.current_device() == 0
    graphs = engine.read_meter().graphs["code2wav"]  # where there are any, captured there
    assert graphs[decoded] > 0
    assert graphs.keys() == {decoded}


@torch.inference_mode()
def test_neither_host_nor_talker_waits_for_the_decoder() -> None:
    """While the decoder is busy with one batch another is launched: the talker's device is done long before it."""
    load = {"cycles": 0}

    def decode(codes: torch.Tensor) -> torch.Tensor:
        assert torch.cuda.current_device() == codes.device.index == 1
        torch.cuda._sleep(load["cycles"])
        return codes[:, 0].float().repeat_interleave(1_920, dim=1)

    pool = DecodePool(ExactDecoder(decode), "cuda:1", PoolLimits(max_frames=10))
    heard: list[float] = []
    for load["cycles"] in (0, SECOND_LONG):  # first a rehearsal: new memory may make the host wait
        pool.warm_up(torch.device("cuda:0"), frames=1)
        for value in (1, 2):
            codes = torch.full((10, 16), value, dtype=torch.int16, device="cuda:0")
            pool.add("row", codes, 10, lambda audio: heard.append(float(audio.max())))
        pool.advance(drain=True)
        torch.cuda.synchronize("cuda:0")
        heard.clear()
        pool.advance(drain=True)
        heard_early = len(heard)
        torch.cuda.synchronize("cuda:1")
        pool.advance(drain=True)
    assert (heard_early, sorted(heard)) == (0, [1.0, 2.0])
    assert heard == [1.0, 2.0, 1.0, 2.0]
