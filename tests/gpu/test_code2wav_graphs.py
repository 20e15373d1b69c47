"""Code2Wav in CUDA graphs, at the released widths: a replay is the eager run; what cannot be captured runs eagerly."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.engine.random_codec import random_decoder, relative_error
from tests.gpu.test_code2wav_fast import RELEASED
from tests.gpu.test_engine import requests
from tts_batch.engine.code2wav.decode_pool import DecodePool, PoolLimits
from tts_batch.engine.code2wav.fast_decoder import FastCodecDecoder
from tts_batch.engine.code2wav.graphs import Code2WavGraphs
from tts_batch.engine.cuda_graphs import CudaGraphs
from tts_batch.engine.generation import generate
from tts_batch.engine.meter import Meter
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.request import EngineConfig
from tts_batch.model.tiny import build_tiny

LONGEST = 97  # frames of codes: 72 of context and a chunk of 25


@pytest.fixture(scope="module")
def fast() -> FastCodecDecoder:
    return FastCodecDecoder(random_decoder(RELEASED).cuda())


def graphs_of(fast: FastCodecDecoder, meter: Meter) -> Code2WavGraphs:
    graphs = CudaGraphs(True, "Code2Wav", meter.graphs["code2wav"], torch.device("cuda"))
    return Code2WavGraphs(fast, graphs, "cuda", longest=64, max_frames=300)


def random_codes(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 2_048, shape, generator=torch.Generator().manual_seed(seed)).cuda()


@pytest.fixture(scope="module")
def captured(fast: FastCodecDecoder) -> tuple[Code2WavGraphs, Counter[str]]:
    meter = Meter()
    graphs = graphs_of(fast, meter)
    with torch.inference_mode():
        graphs.capture()
    return graphs, meter.graphs["code2wav"]


@torch.inference_mode()
def test_a_replay_is_the_eager_run(fast: FastCodecDecoder, captured: tuple[Code2WavGraphs, Counter[str]]) -> None:
    graphs, counts = captured
    for number, (pieces, frames) in enumerate(graphs.buckets):
        codes = random_codes(pieces, 16, LONGEST, seed=number)
        first = torch.arange(pieces, device="cuda") * 7 % (LONGEST - frames)
        ends = torch.full((pieces,), LONGEST, device="cuda")
        replayed = graphs.decode(codes, first, frames, ends).clone()
        torch.testing.assert_close(replayed, fast(codes, first, frames), rtol=0, atol=0)
    assert counts == {"hit": len(graphs.buckets)}


@torch.inference_mode()
def test_padding_up_to_a_bucket_is_not_heard(
    fast: FastCodecDecoder, captured: tuple[Code2WavGraphs, Counter[str]]
) -> None:
    codes, first = random_codes(4, 16, 45, seed=3), torch.tensor([0, 3, 11, 18], device="cuda")
    audio = captured[0].decode(codes, first, 27, ends=first + 27)[:, : 27 * 1_920]
    assert relative_error(audio, fast(codes, first, 27)) < 5e-3


@torch.inference_mode()
def test_a_pool_replays_beside_other_work(fast: FastCodecDecoder) -> None:
    """Batch after batch over the same static tensors, on the pool's stream, while another stream is busy."""
    meter = Meter()
    pools = [
        DecodePool(fast, "cuda", PoolLimits(600), graphs=graphs, meter=meter)
        for graphs in (None, graphs_of(fast, meter))
    ]
    pools[1].warm_up(torch.device("cuda"))
    earlier = meter.read()
    generator = torch.Generator().manual_seed(4)
    lengths = [
        (58 + i % 40, wanted) for i, wanted in enumerate(torch.randint(1, 40, (40,), generator=generator).tolist())
    ]
    heard: list[dict[int, np.ndarray]] = []
    busy = torch.randn(2_048, 2_048, device="cuda")
    for pool in pools:
        audio: dict[int, np.ndarray] = {}
        for i, (length, wanted) in enumerate(lengths):
            codes = random_codes(length, 16, seed=i)
            pool.add(f"{i}", codes, wanted, lambda clip, i=i, audio=audio: audio.update({i: clip.copy()}))
        while len(audio) < len(lengths):
            busy @ busy
            pool.advance(drain=True)
        heard.append(audio)
    for i, clip in heard[0].items():
        assert relative_error(torch.from_numpy(heard[1][i]), torch.from_numpy(clip)) < 5e-3, lengths[i]
    read = meter.read().since(earlier)
    assert set(read.graphs["code2wav"]) == {"hit", "eager"}  # of the one pool and of the other
    assert read.device_s["code2wav"] > 0


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # of torch, when a capture fails
@torch.inference_mode()
def test_out_of_memory_in_a_capture_leaves_the_others(fast: FastCodecDecoder) -> None:
    meter = Meter()

    def short_of_memory(
        codes: torch.Tensor, first: torch.Tensor, num_frames: int, ends: torch.Tensor | None = None
    ) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing() and len(codes) * num_frames > 64:
            torch.empty(2**44, dtype=torch.uint8, device="cuda")
        return fast(codes, first, num_frames, ends)

    graphs = graphs_of(short_of_memory, meter)
    graphs.capture()
    failed = [bucket for bucket in graphs.buckets if bucket[0] * bucket[1] > 64]
    assert meter.graphs["code2wav"] == {f"failed[{bucket}]": 1 for bucket in failed}
    codes, first = random_codes(4, 16, 60), torch.zeros(4, dtype=torch.int64, device="cuda")
    for frames in (9, 64):
        audio = graphs.decode(codes, first, frames, ends=first + 60)[:, : 60 * 1_920].clone()
        torch.testing.assert_close(audio, fast(codes, first, frames)[:, : 60 * 1_920], rtol=0, atol=2e-2)
    assert meter.graphs["code2wav"]["hit"] == meter.graphs["code2wav"]["miss[(4, 64)]"] == 1


@pytest.mark.parametrize("mode", ["utterance", "chunked"])
def test_an_engine_replays_every_frame_and_chunk(mode: str, tmp_path: Path) -> None:
    clips = {}
    for graphs in (True, False):
        engine = NativeEngine(
            EngineConfig(
                model=str(build_tiny("tiny-random", "base")), device="cuda", dtype="bfloat16", max_num_seqs=8,
                code2wav_mode=mode, cuda_graph=graphs, cache_dir=str(tmp_path),
            )
        )  # fmt: skip
        clips[graphs] = {result.request_id: result for result in generate(engine, requests())}
        read = engine.read_meter()
        for owner, counts in read.graphs.items():
            is_replayed = graphs and (owner == "frame_loop" or mode == "chunked")
            assert counts.keys() == ({"hit"} if is_replayed else {"eager"})
        engine.close()
    for name, clip in clips[True].items():
        assert np.array_equal(clip.codes, clips[False][name].codes)
        np.testing.assert_allclose(clip.audio, clips[False][name].audio, rtol=0, atol=0.05)
