"""What an engine is made of, for each setting that turns an optimisation off."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest
import torch

from tests.engine.asking import ask, voice
from tests.engine.tiny_stages import tiny_stages
from tts_batch.engine import assemble
from tts_batch.engine.assemble import code2wav_graphs, decode_pool, decoder_for, require_memory, sizes_for
from tts_batch.engine.code2wav.decode_pool import PoolLimits
from tts_batch.engine.code2wav.decoder import ExactDecoder
from tts_batch.engine.code2wav.fast_decoder import CONV_CONTEXT, FastCodecDecoder
from tts_batch.engine.code2wav.graphs import Code2WavGraphs
from tts_batch.engine.compute_loop import ComputeLoop
from tts_batch.engine.devices import Platform
from tts_batch.engine.errors import EngineConfigError
from tts_batch.engine.generation import generate
from tts_batch.engine.kernels import backend
from tts_batch.engine.meter import Meter
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.profiles import load_profile
from tts_batch.engine.request import EngineConfig
from tts_batch.engine.voices import references
from tts_batch.engine.voices.encoder import ALONE
from tts_batch.model.config import CodecConfig, ModelConfig
from tts_batch.model.qwen3_tts import Qwen3TTS

PROFILE = load_profile("throughput", "cuda")
BF16_CUDA = Platform(torch.device("cuda"), torch.bfloat16, "v2")
EVERYTHING_OFF = {
    "frames_per_visit": "1",
    "prefill_tokens": "512",
    "references_together": "false",
    "codec_skips_context": "false",
    "fast_codec": "false",
    "codec_graphs": "false",
    "small_batch_kernels": "false",
    "codec_stream": "false",
    "code2wav_pieces": "2",
}


@pytest.fixture
def exact(tiny_model: Callable[[str], Qwen3TTS]) -> torch.nn.Module:
    return tiny_model("base").speech_tokenizer.decoder


def test_the_fast_codec_decodes_in_bfloat16_on_cuda(exact: torch.nn.Module) -> None:
    decode = decoder_for(exact, BF16_CUDA, PROFILE)
    assert isinstance(decode, FastCodecDecoder)
    assert decode.conv_context == CONV_CONTEXT


@pytest.mark.parametrize(
    "platform",
    [
        replace(BF16_CUDA, runner="v1"),
        replace(BF16_CUDA, dtype=torch.float32),
        replace(BF16_CUDA, device=torch.device("cpu")),
    ],
)
def test_elsewhere_the_exact_decoder_does(exact: torch.nn.Module, platform: Platform) -> None:
    decode = decoder_for(exact, platform, PROFILE)
    assert isinstance(decode, ExactDecoder)
    codes = torch.arange(48).view(1, 16, 3)
    with torch.no_grad():
        assert torch.equal(decode(codes, torch.tensor([0]), 3, torch.tensor([3])), exact(codes))


def test_context_that_is_not_skipped_is_decoded(exact: torch.nn.Module) -> None:
    decode = decoder_for(exact, BF16_CUDA, replace(PROFILE, codec_skips_context=False))
    assert isinstance(decode, FastCodecDecoder)
    assert decode.conv_context is None


def test_without_the_fast_codec_a_copy_of_the_exact_one_decodes_in_bfloat16(exact: torch.nn.Module) -> None:
    decode = decoder_for(exact, BF16_CUDA, replace(PROFILE, fast_codec=False))
    assert isinstance(decode, ExactDecoder)
    assert decode.conv_context is None
    assert {p.dtype for p in exact.parameters()} == {torch.float32}
    codes = torch.arange(32).view(1, 16, 2)
    with torch.no_grad():
        audio = decode(codes, torch.tensor([0]), 2, torch.tensor([2]))
        assert audio.dtype == torch.float32
        assert not torch.equal(audio, exact(codes))
        torch.testing.assert_close(audio, exact(codes), atol=0.05, rtol=0.05)


@pytest.mark.parametrize(("context", "largest"), [(CONV_CONTEXT, 26), (None, 97)])
def test_code2wav_has_graphs_for_chunks(exact: torch.nn.Module, context: int | None, largest: int) -> None:
    limits = PoolLimits(650, max_pieces=8)
    fast = FastCodecDecoder(exact, torch.bfloat16, context)
    buckets = code2wav_graphs(fast, torch.device("cpu"), limits, Meter()).buckets
    assert max(frames for _, frames in buckets) == largest
    assert max(pieces for pieces, _ in buckets) == 8
    assert max(pieces * frames for pieces, frames in buckets) <= 650


@pytest.mark.parametrize(
    ("mode", "knobs", "settings", "captures"),
    [
        ("chunked", {}, {}, True),
        ("utterance", {}, {}, False),
        ("chunked", {"codec_graphs": False}, {}, False),
        ("chunked", {}, {"cuda_graph": False}, False),
        ("chunked", {}, {"eager": True}, False),
    ],
)
def test_only_chunks_of_the_fast_codec_are_replayed(
    tiny_model: Callable[[str], Qwen3TTS],
    mode: str,
    knobs: dict[str, bool],
    settings: dict[str, bool],
    captures: bool,
) -> None:
    model = tiny_model("base")
    fast = FastCodecDecoder(model.speech_tokenizer.decoder)
    config = EngineConfig(model="", code2wav_mode=mode, **settings)
    platform, profile = replace(BF16_CUDA, device=torch.device("cpu")), replace(PROFILE, **knobs)
    pool = decode_pool(fast, platform, profile, config, Meter())
    assert isinstance(pool.graphs, Code2WavGraphs if captures else type(None))
    exact = ExactDecoder(model.speech_tokenizer.decoder)
    assert decode_pool(exact, platform, profile, config, Meter()).graphs is None, "the exact codec's"


def test_all_optimisations_off_the_clips_are_the_same(open_tiny: Callable[..., NativeEngine]) -> None:
    requests = [ask(f"{i}", task="base", seed=i, max_frames=3 + i, reference=voice(f"v{i}", 0.4)) for i in range(3)]
    clips = []
    for settings in ({}, {"eager": True, "options": EVERYTHING_OFF}):
        engine = open_tiny("base", runner="v2", **settings)
        clips.append({result.request_id: result for result in generate(engine, iter(requests))})
    for name, one in clips[0].items():
        assert np.array_equal(one.codes, clips[1][name].codes)
        np.testing.assert_allclose(one.audio, clips[1][name].audio, atol=1e-4)


@pytest.mark.parametrize(("together", "shapes"), [("true", None), ("false", ALONE)])
def test_references_are_encoded_alone_when_set_so(
    monkeypatch: pytest.MonkeyPatch, together: str, shapes: object
) -> None:
    seen = []
    monkeypatch.setattr(references, "ReferenceEncoder", lambda model, shapes: seen.append(shapes))
    stages = tiny_stages("base", options={"references_together": together})
    stages.preparer.forget_references()
    assert seen == [shapes, shapes]


def test_kernels_are_left_out_where_they_are_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "triton", object())  # as if it were here, for tensors of any device
    monkeypatch.setattr(backend, "_INTERPRETED", True)
    x = torch.zeros(1)
    with backend.kernels_allowed(False):
        assert not backend.uses_triton(x)
        with backend.kernels_allowed(True):
            assert backend.uses_triton(x)
        assert not backend.uses_triton(x)
    assert backend.uses_triton(x)


@pytest.mark.parametrize("eager", [False, True])
def test_eager_leaves_kernels_and_graphs_out(monkeypatch: pytest.MonkeyPatch, eager: bool) -> None:
    seen = set()
    stages = tiny_stages(runner="v2", eager=eager)
    runner = stages.runner
    step = runner.step

    def look() -> list:
        seen.add(backend._ALLOWED.get())
        return step()

    monkeypatch.setattr(runner, "step", look)
    engine = ComputeLoop(stages)
    list(generate(engine, [ask()]))
    engine.close()
    assert seen == {not eager}
    assert runner.settings.cuda_graph == (not eager)


def test_an_engine_on_a_card_is_sized_by_its_free_memory(
    tiny_model: Callable[[str], Qwen3TTS], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, config = tiny_model("base"), EngineConfig(model="", max_frames=1_000)
    decode = ExactDecoder(model.speech_tokenizer.decoder)
    monkeypatch.setattr(assemble, "describe_card", lambda device: "cuda:0 (a card)")
    monkeypatch.setattr(assemble, "free_bytes", lambda device: 100 * 2**30)
    caplog.set_level("INFO")
    large = sizes_for(model, BF16_CUDA, PROFILE, config, decode)
    assert large is not None
    assert large.max_num_seqs == PROFILE.max_num_seqs
    assert f"100.0 GiB free beside the weights on cuda:0 (a card): {PROFILE.max_num_seqs} rows" in caplog.text
    monkeypatch.setattr(assemble, "free_bytes", lambda device: 0.1 * 2**30)
    with pytest.raises(EngineConfigError, match=r"\(a card\), with.* has 0\.1 GiB.*GiB are needed.*--max-num-seqs"):
        sizes_for(model, BF16_CUDA, PROFILE, config, decode)
    assert sizes_for(model, replace(BF16_CUDA, device=torch.device("cpu")), PROFILE, config, decode) is None


@pytest.mark.parametrize(("shape", "least_gib"), [("base_1b7", 5.5), ("base_0b6", 3.6)])
def test_a_card_without_room_for_a_released_model_is_refused_before_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch, shape: str, least_gib: float
) -> None:
    folder = files("tts_batch.model") / "released"
    model = ModelConfig.from_json(json.loads((folder / f"{shape}.json").read_text()))
    codec = CodecConfig.from_json(json.loads((folder / "speech_tokenizer.json").read_text()))
    config = EngineConfig(model="", max_frames=1_000)
    monkeypatch.setattr(assemble, "describe_card", lambda device: "cuda:0 (a card)")
    monkeypatch.setattr(assemble, "free_bytes", lambda device: (least_gib + 0.3) * 2**30)
    require_memory(model, codec, BF16_CUDA, config)
    monkeypatch.setattr(assemble, "free_bytes", lambda device: (least_gib - 0.3) * 2**30)
    with pytest.raises(EngineConfigError, match=r"a card\) has .* GiB of free memory, and at least .*a 0\.6B model"):
        require_memory(model, codec, BF16_CUDA, config)
    require_memory(model, codec, replace(BF16_CUDA, device=torch.device("cpu")), config)
