"""NativeEngine on the tiny checkpoints: the official package's codes and waves, one by one and together."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.engine.asking import GREEDY, ask, voice
from tests.golden.cases import CHECKPOINTS, GREEDY_CASES
from tts_batch.engine.errors import EngineConfigError, EngineError
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.request import Engine, EngineConfig, Reference, SpeechRequest, SpeechResult
from tts_batch.model.tiny import build_tiny

GOLDEN = Path(__file__).parents[1] / "golden"
DATA = Path(__file__).parents[1] / "data"
WAVE_STEP = 17  # of the official waves every 17th sample was kept, from the end
NEAR_TIE = 1e-3  # where the official package's two best scores lie closer, rounding may decide

Open = Callable[..., NativeEngine]


@cache
def golden(name: str) -> dict[str, np.ndarray]:
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        return dict(arrays)


def golden_rows(prefix: str) -> list[tuple[str, int]]:
    """The greedy rows of the official generations of one checkpoint."""
    names = [name for name in GREEDY_CASES if name.split("_", maxsplit=1)[0] == prefix]
    return [(name, row) for name in names for row in range(golden(name)["talker_margin"].shape[1])]


def golden_request(name: str, row: int) -> SpeechRequest:
    """The request that asks for what the official package was asked for. References are given as it encoded them."""
    arrays = golden(name)
    meta = json.loads(str(arrays["meta"]))
    given = {key: value[row] if isinstance(value, list) else value for key, value in meta["kwargs"].items()}
    reference = None
    if f"ref_spk_embedding_{row}" in arrays:
        reference = Reference(
            key=f"{name} {row}",
            load=lambda: pytest.fail("what is given must not be loaded"),
            text=given.get("ref_text"),
            codes=arrays.get(f"ref_code_{row}"),
            x_vector=arrays[f"ref_spk_embedding_{row}"],
        )
    return ask(
        f"{name} {row}",
        text=given["text"],
        task=CHECKPOINTS[name.split("_", maxsplit=1)[0]][0],
        max_frames=given["max_new_tokens"] - 1,
        sampling=GREEDY,
        language=given.get("language"),
        speaker=given.get("speaker"),
        instruct=given.get("instruct"),
        reference=reference,
        x_vector_only=given.get("x_vector_only_mode", False),
        non_streaming=given.get("non_streaming_mode"),
    )


def assert_official(result: SpeechResult) -> None:
    name, row = result.request_id.rsplit(" ", 1)
    arrays, row = golden(name), int(row)
    codes = arrays[f"codes_{row}"]
    same = min(len(codes), result.num_frames)
    differs = np.flatnonzero((result.codes[:same] != codes[:same]).any(1))
    same = int(differs[0]) if len(differs) else same
    if same < max(len(codes), result.num_frames):
        talker, predictor = arrays["talker_margin"][same, row], arrays["predictor_margin"][same : same + 1, :, row]
        assert min(talker, predictor.min(initial=1)) < NEAR_TIE, f"{result.request_id} differs from frame {same}"
        return
    assert result.eos == (len(codes) < 39)
    assert result.finish_reason == ("stop" if result.eos else "length")
    assert arrays[f"wav_{row}_samples"] - len(result.audio) in (0, 1)  # the official trim may round down
    wave = result.audio[::-WAVE_STEP]
    np.testing.assert_allclose(wave, arrays[f"wav_{row}_from_end"][: len(wave)], atol=5e-5)


@pytest.mark.parametrize("prefix", CHECKPOINTS)
def test_greedy_codes_and_waves_are_the_official_ones(prefix: str) -> None:
    engine = NativeEngine(EngineConfig(model=str(build_tiny("tiny-random", *CHECKPOINTS[prefix])), device="cpu"))
    requests = [golden_request(*row) for row in golden_rows(prefix)]
    for result in engine.generate(requests):
        assert_official(result)
    if prefix in ("base", "cv"):  # and alone
        for request in requests[:2]:
            assert_official(*engine.generate([request]))
    engine.close()


def test_a_reference_is_encoded_as_the_official_package_does(open_tiny: Open) -> None:
    audio, _ = soundfile.read(DATA / "ref_a_24k.wav", dtype="float32")
    given = golden_request("base_icl_greedy", 0)
    reference = Reference(key="a", load=lambda: audio, text=given.reference.text)
    request = ask(given.request_id, **{**fields_of(given), "reference": reference})
    assert_official(*open_tiny("base").generate([request]))


def fields_of(request: SpeechRequest) -> dict[str, object]:
    names = set(SpeechRequest.__dataclass_fields__) - {"request_id"}
    return {name: getattr(request, name) for name in names}


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

    results = list(engine.generate(iter(requests)))
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
    (result,) = open_tiny().generate([ask(speaker="Eric", instruct="Slowly.", language=None)])
    assert result.effective == {"language": "sichuan_dialect", "speaker": "eric", "instruct": "Slowly."}
    assert set(result.metrics) == {
        "prepare_s", "queue_s", "prefill_s", "decode_s", "code2wav_s", "prompt_tokens", "text_tokens",
    }  # fmt: skip
    assert min(result.metrics.values()) >= 0


def test_a_row_repeats_itself_in_any_company(open_tiny: Open) -> None:
    engine = open_tiny(max_num_seqs=4)
    company = [ask(str(i), seed=i, max_frames=3, text="word " * i) for i in range(1, 6)]
    (alone,) = engine.generate([ask("me", max_frames=4, seed=99)])
    results = {r.request_id: r for r in engine.generate([*company, ask("me", max_frames=4, seed=99)])}
    assert np.array_equal(results["me"].codes, alone.codes)
    np.testing.assert_allclose(results["me"].audio, alone.audio, atol=5e-5)


def test_cancel_and_early_close_of_real_work(open_tiny: Open) -> None:
    engine = open_tiny(max_num_seqs=2)
    results = engine.generate(ask(str(i), max_frames=2 if i < 2 else 500) for i in range(4))
    ended = {next(results).request_id, next(results).request_id}
    engine.cancel("2")
    assert next(results).finish_reason in ("cancelled", "length")
    results.close()
    assert [t for t in threading.enumerate() if t.name == "tts-batch-compute"] == []
    assert len(ended) == 2
    assert next(engine.generate([ask("again")])).finish_reason == "length"


def test_one_generation_at_a_time_and_none_after_close(open_tiny: Open) -> None:
    engine = open_tiny()
    assert isinstance(engine, Engine)
    assert list(engine.generate([])) == []
    running = engine.generate([ask("a"), ask("b")])
    next(running)
    with pytest.raises(EngineError, match="generating already"):
        next(engine.generate([ask("c")]))
    running.close()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        next(engine.generate([ask("d")]))


def test_an_engine_whose_requests_fail_is_dead(open_tiny: Open) -> None:
    engine = open_tiny()

    def broken() -> Iterator[SpeechRequest]:
        yield ask("a")
        raise OSError("gone")

    with pytest.raises(EngineError, match="gone"):
        list(engine.generate(broken()))
    with pytest.raises(EngineError, match=r"closed.*gone"):
        list(engine.generate([]))


def test_computes_in_bfloat16_when_asked(open_tiny: Open) -> None:
    engine = open_tiny("base", dtype="bfloat16")
    assert engine.info["dtype"] == "bfloat16"
    (result,) = engine.generate([ask(task="base", reference=voice(seconds=0.3))])
    assert result.num_frames == 2
    assert np.isfinite(result.audio).all()


def test_says_what_it_computes_with(open_tiny: Open) -> None:
    assert open_tiny(max_num_seqs=3).info == {"runner": "v1", "device": "cpu", "dtype": "float32", "max_num_seqs": "3"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "/no/such/folder"}, "neither a folder nor a hub id"),
        ({"runner": "v3"}, "'v3' is not one of v1, v2"),
        ({"runner": "v2"}, "not in this version"),
        ({"device": "musa"}, "'musa' was asked for"),
        ({"dtype": "float16"}, "'float16' is not one of"),
        ({"placement": "split"}, "'split' is not in this version"),
        ({"profile": "b4"}, "profile 'b4' is not in this version"),
    ],
)
def test_what_cannot_be_had_is_said_at_once(settings: dict[str, str], message: str) -> None:
    folder = str(build_tiny("tiny-random", "custom_voice"))
    with pytest.raises(EngineConfigError, match=message):
        NativeEngine(EngineConfig(**{"model": folder, "device": "cpu", **settings}))
