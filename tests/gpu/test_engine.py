"""The whole engine on CUDA: graphs change no code, chunks are the clip, voices reach the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.engine.asking import ask, voice
from tests.engine.code2wav.test_chunked import Chunks
from tts_batch.engine.generation import generate
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.request import EngineConfig, SpeechRequest
from tts_batch.model.tiny import build_tiny

Open = Callable[..., NativeEngine]


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
        ask(
            f"{i}",
            task="base",
            reference=voice(f"v{i % 3}", 0.5),
            x_vector_only=i % 4 == 1,
            max_frames=3 + 5 * i,
            seed=i,
        )
        for i in range(12)
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_graphs_change_no_code(open_cuda: Open, dtype: str) -> None:
    clips = {}
    for graphs in (True, False):
        engine = open_cuda(dtype=dtype, cuda_graph=graphs)
        clips[graphs] = {result.request_id: result for result in generate(engine, requests())}
    for name, replayed in clips[True].items():
        assert replayed.finish_reason in ("stop", "length")
        assert np.array_equal(replayed.codes, clips[False][name].codes)
        assert np.isfinite(replayed.audio).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_chunks_are_the_clip(open_cuda: Open, dtype: str) -> None:
    chunks = Chunks()
    engine = open_cuda(dtype=dtype, code2wav_mode="chunked", on_chunk=chunks)
    results = list(generate(engine, requests()))
    assert chunks.ended == {result.request_id for result in results}
    for result in results:
        assert result.audio.shape == (result.num_frames * 1_920,)
        assert np.array_equal(np.concatenate(chunks.audio[result.request_id]), result.audio)
        *frames, last = chunks.frames(result.request_id)
        assert frames == [1, 1, 2, 4, 8, 16, 25][: len(frames)]
        assert last <= 25


def test_voices_reach_the_disk(open_cuda: Open, tmp_path: Path) -> None:
    first = open_cuda()
    codes = {result.request_id: result.codes for result in generate(first, requests())}
    first.close()
    assert len(list(tmp_path.rglob("*.npz"))) == 3
    for result in generate(open_cuda(), requests()):
        assert np.array_equal(result.codes, codes[result.request_id])


def test_runner_v1_gives_the_same_clips(open_cuda: Open) -> None:
    clips = {}
    for runner in ("v1", "v2"):
        engine = open_cuda(dtype="float32", runner=runner)
        clips[runner] = {result.request_id: result for result in generate(engine, requests())}
    for name, clip in clips["v1"].items():
        assert np.array_equal(clip.codes, clips["v2"][name].codes)
        np.testing.assert_allclose(clip.audio, clips["v2"][name].audio, rtol=0, atol=5e-5)
