"""NativeEngine on the tiny checkpoints: every request ends once, whatever happens to it or to its neighbours."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.engine.asking import ask, voice
from tests.engine.scripted import compute_threads
from tts_batch.engine import native
from tts_batch.engine.devices import Platform
from tts_batch.engine.errors import EngineConfigError, EngineError
from tts_batch.engine.generation import generate
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.request import Engine, EngineConfig
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.tiny import build_tiny

Open = Callable[..., NativeEngine]


def test_many_requests_of_every_sort_through_small_batches(open_tiny: Open) -> None:
    engine = open_tiny("base", max_num_seqs=5)
    draw = random.Random(3)
    bad = {
        "no reference": {"reference": None},
        "no transcript": {"reference": voice("b", text=None)},
        "wrong task": {"task": "custom_voice"},
        "bad language": {"language": "Klingon"},
        "empty": {"text": ""},
        "load fails": {"reference": voice("broken", load=lambda: 1 / 0)},
    }
    requests = [
        ask(
            f"{i}",
            task="base",
            text="word " * draw.randint(1, 9),
            reference=voice(f"voice {i % 3}", 0.3),
            x_vector_only=draw.random() < 0.5,
            non_streaming=draw.choice([None, True, False]),
            max_frames=draw.randint(1, 2),
            seed=i,
        )
        for i in range(194)
    ]
    requests += [
        ask(name, **{"task": "base", "reference": voice("voice 1", 0.3), **fields}) for name, fields in bad.items()
    ]
    draw.shuffle(requests)

    results = list(generate(engine, iter(requests)))
    assert Counter(r.request_id for r in results) == Counter(r.request_id for r in requests)
    assert {r.request_id: r.reason for r in results if r.reason} == {
        "no reference": "ref_missing",
        "no transcript": "ref_text_missing",
        "wrong task": "wrong_task",
        "bad language": "bad_language",
        "empty": "empty_text",
        "load fails": "engine_error",
    }
    for result in results:
        if result.finish_reason in ("stop", "length"):
            assert result.codes.shape == (result.num_frames, 16)
            assert result.audio.shape == (result.num_frames * 1_920,)
            assert result.audio.dtype == np.float32
            assert result.audio.flags.owndata
            assert np.isfinite(result.audio).all()


def test_says_what_was_applied_and_how_long_it_took(open_tiny: Open) -> None:
    (result,) = generate(open_tiny(), [ask(speaker="Eric", instruct="Slowly.", language=None)])
    assert result.effective == {"language": "sichuan_dialect", "speaker": "eric", "instruct": "Slowly."}
    assert set(result.metrics) == {
        "prepare_s", "queue_s", "prefill_s", "decode_s", "code2wav_s", "prompt_tokens", "text_tokens",
    }  # fmt: skip
    assert min(result.metrics.values()) >= 0


def test_a_row_repeats_itself_in_any_company(open_tiny: Open) -> None:
    engine = open_tiny(max_num_seqs=4)
    company = [ask(str(i), seed=i, max_frames=3, text="word " * i) for i in range(1, 6)]
    (alone,) = generate(engine, [ask("me", max_frames=4, seed=99)])
    results = {r.request_id: r for r in generate(engine, [*company, ask("me", max_frames=4, seed=99)])}
    assert np.array_equal(results["me"].codes, alone.codes)
    np.testing.assert_allclose(results["me"].audio, alone.audio, atol=5e-5)


def test_abort_and_early_close_of_real_work(open_tiny: Open) -> None:
    engine = open_tiny(max_num_seqs=2)
    assert isinstance(engine, Engine)
    results = generate(engine, (ask(str(i), max_frames=2 if i < 2 else 500) for i in range(4)))
    ended = {next(results).request_id, next(results).request_id}
    engine.abort_request("2")
    assert next(results).finish_reason in ("cancelled", "length")
    results.close()
    assert len(ended) == 2
    assert engine.num_wanted > 0
    assert next(generate(engine, [ask("again")])).finish_reason == "length"


def test_a_closed_engine_is_over(open_tiny: Open) -> None:
    engine = open_tiny()
    engine.add_request(ask("a", max_frames=500))
    assert len(compute_threads()) == 1
    engine.close()
    engine.close()
    assert compute_threads() == []
    assert engine.num_wanted == 0
    engine.abort_request("a")
    for call in (lambda: engine.add_request(ask("b")), lambda: engine.step(1.0), engine.read_meter):
        with pytest.raises(EngineError, match="this engine is closed"):
            call()


def test_an_engine_that_is_never_closed_leaves_no_thread() -> None:
    engine = NativeEngine(EngineConfig(model=str(build_tiny("tiny-random", "custom_voice")), device="cpu"))
    assert len(list(generate(engine, [ask()]))) == 1
    assert len(compute_threads()) == 1
    del engine
    gc.collect()
    assert compute_threads() == []


def test_a_result_s_arrays_are_the_caller_s(open_tiny: Open) -> None:
    engine = open_tiny(runner="v2")
    (first,) = generate(engine, [ask(max_frames=3)])
    kept = first.audio.copy()
    list(generate(engine, [ask(str(i), max_frames=3, seed=i) for i in range(4)]))
    np.testing.assert_array_equal(first.audio, kept)


def test_computes_in_bfloat16_when_asked(open_tiny: Open) -> None:
    engine = open_tiny("base", dtype="bfloat16")
    assert engine.info["dtype"] == "bfloat16"
    (result,) = generate(engine, [ask(task="base", reference=voice(seconds=0.3))])
    assert result.num_frames == 2
    assert np.isfinite(result.audio).all()


def test_says_what_it_computes_with(open_tiny: Open) -> None:
    info = open_tiny(max_num_seqs=3, loop_frames=9).info
    assert info | {"runner": "v1", "device": "cpu", "dtype": "float32", "max_num_seqs": "3"} == info
    assert info | {"profile": "basic", "code2wav_mode": "utterance", "code2wav_pieces": "1"} == info
    assert info | {"repeated_frames": "9", "few_codes_frames": "9"} == info
    info = open_tiny(profile="b2", runner="v2").info
    assert info | {"profile": "b2", "runner": "v2", "prefill_tokens": "512", "frames_per_visit": "1"} == info
    assert info["kv_tokens"] == "32768"  # of the model's longest row


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "/no/such/folder"}, "neither a folder nor a hub id"),
        ({"runner": "v3"}, "'v3' is not one of v1, v2"),
        ({"device": "musa"}, "'musa' is unavailable"),
        ({"device": "tpu"}, "'tpu' is not one of auto, cpu, cuda"),
        ({"dtype": "float16"}, "'float16' is not one of"),
        ({"max_num_seqs": 0}, "max_num_seqs cannot be 0"),
        ({"stall_timeout_s": 0.0}, "stall_timeout_s cannot be 0.0"),
        ({"profile": "b3"}, "'b3' is not one of basic, b2, b4, throughput"),
        ({"code2wav_mode": "streamed"}, "'streamed' is not one of utterance, chunked"),
    ],
)
def test_an_invalid_configuration_is_refused_at_once(settings: dict[str, object], message: str) -> None:
    folder = str(build_tiny("tiny-random", "custom_voice"))
    with pytest.raises(EngineConfigError, match=message):
        NativeEngine(EngineConfig(**{"model": folder, "device": "cpu", **settings}))


def test_too_little_memory_to_open_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_big(*arguments: object) -> None:
        raise torch.OutOfMemoryError("tried to allocate 20.00 GiB")

    monkeypatch.setattr(native, "assemble", too_big)
    folder = str(build_tiny("tiny-random", "custom_voice"))
    with pytest.raises(
        EngineConfigError, match=r"too little free memory.*0\.6B.*--profile.*--max-num-seqs.*20\.00 GiB"
    ):
        NativeEngine(EngineConfig(model=folder, device="cpu"))


def test_two_engines_in_one_process_take_turns_and_do_not_mix(open_tiny: Open) -> None:
    engines = [open_tiny(runner=runner, max_num_seqs=2) for runner in ("v1", "v2", "v2")]
    requests = [ask(str(i), max_frames=4 + i, seed=i) for i in range(5)]
    expected = {r.request_id: r.codes.tolist() for r in generate(engines[0], requests)}
    at_once = [generate(engine, requests) for engine in engines]
    ended: list[dict[str, list]] = [{} for _ in engines]
    for results in zip(*at_once, strict=True):
        for mine, result in zip(ended, results, strict=True):
            mine[result.request_id] = result.codes.tolist()
    assert ended == [expected] * 3
    assert list(generate(engines[0], [])) == []


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_the_neighbours_of_a_clip_change_no_sample_of_it(open_tiny: Open, runner: str) -> None:
    engine = open_tiny(max_num_seqs=4, runner=runner)
    requests = [ask(f"{i}", seed=i, max_frames=2 + 2 * i) for i in range(4)]
    together = {result.request_id: result.audio for result in generate(engine, iter(requests))}
    alone = {result.request_id: result.audio for one in requests for result in generate(engine, [one])}
    for request_id, audio in together.items():
        assert audio is not None
        np.testing.assert_array_equal(audio, alone[request_id])


@pytest.mark.parametrize("of_model", [False, True])
def test_float32_convolutions_are_whole_on_cuda(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Callable[[str], Qwen3TTS], of_model: bool
) -> None:
    def assembled(*args: object) -> None:
        raise EngineError(f"allow_tf32 {torch.backends.cudnn.allow_tf32}")

    model = tiny_model("custom_voice")
    monkeypatch.setattr(native, "resolve_platform", lambda _: Platform(torch.device("cuda"), torch.bfloat16, "v2"))
    monkeypatch.setattr(native, "assemble", assembled)
    monkeypatch.setattr(native, "resolve_checkpoint", lambda *_: SimpleNamespace(config=None, codec=None))
    monkeypatch.setattr(native, "require_memory", lambda *_: None)
    monkeypatch.setattr(native.Qwen3TTS, "load", lambda *_: model)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    config = EngineConfig(model="")
    with pytest.raises(EngineError, match="allow_tf32 False"):
        NativeEngine.of_model(model, config) if of_model else NativeEngine(config)


def test_an_engine_of_a_model_is_as_strict(tiny_model: Callable[[str], Qwen3TTS]) -> None:
    with pytest.raises(EngineConfigError, match="'spilt' is not one of colocated, split"):
        NativeEngine.of_model(tiny_model("base"), EngineConfig(model="", device="cpu", placement="spilt"))
