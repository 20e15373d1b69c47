"""Runner v1: a row's codes hang on the row alone, and end as the contract says."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.engine.asking import GREEDY, ask, voice
from tts_batch.engine.prepare import Preparer
from tts_batch.engine.request import SamplingParams, SpeechRequest
from tts_batch.engine.runner import EngineRow
from tts_batch.engine.v1.runner import LOOK_AHEAD, LockstepRunner
from tts_batch.model.qwen3_tts import Qwen3TTS

# This row of the tiny CustomVoice model meets an EOS early when greedy.
NATURAL = {"text": "Hello world, this is a small test.", "language": "English", "sampling": GREEDY, "max_frames": 60}


def decode(model: Qwen3TTS, requests: list[SpeechRequest], max_num_seqs: int) -> dict[str, EngineRow]:
    runner, preparer = LockstepRunner(model, max_num_seqs), Preparer(model)
    waiting, done = list(requests), {}
    while waiting or runner.busy:
        while waiting and runner.room:
            with torch.inference_mode():
                runner.add(preparer.prepare(waiting.pop(0)))
        for row in runner.step():
            assert row.request_id not in done
            done[row.request_id] = row
    return done


def mixed_requests() -> list[SpeechRequest]:
    """Rows that differ in everything a row can differ in."""
    narrow = SamplingParams(top_k=20, top_p=0.8, temperature=0.7, repetition_penalty=1.2, subtalker_top_p=0.9)
    half = SamplingParams(subtalker_dosample=False, top_k=0, min_new_tokens=5)
    return [
        ask("plain", max_frames=9, seed=1),
        ask("same words, other seed", max_frames=9, seed=2),
        ask("narrow", sampling=narrow, max_frames=7, text="A rather longer text, with more words in it than others."),
        ask("half greedy", sampling=half, max_frames=12, language="German", speaker="serena"),
        ask("greedy", sampling=GREEDY, max_frames=5, text="Hi"),
        ask("instruct", instruct="Say it happily.", max_frames=10, seed=2**63 - 1),
        ask(
            "streaming",
            non_streaming=False,
            max_frames=8,
            text="你好，我是通义千问。",
            language="Chinese",
            speaker="eric",
        ),
    ]


def codes_of(rows: dict[str, EngineRow]) -> dict[str, list[list[int]]]:
    return {name: row.codes.tolist() for name, row in rows.items()}


@pytest.fixture(scope="module")
def alone(tiny_model: Callable[[str], Qwen3TTS]) -> dict[str, EngineRow]:
    return decode(tiny_model("custom_voice"), mixed_requests(), max_num_seqs=1)


@pytest.mark.parametrize("max_num_seqs", [2, 7])
def test_codes_do_not_depend_on_the_batch(
    tiny_model: Callable[[str], Qwen3TTS], alone: dict[str, EngineRow], max_num_seqs: int
) -> None:
    requests = mixed_requests()
    random.Random(max_num_seqs).shuffle(requests)
    together = decode(tiny_model("custom_voice"), requests, max_num_seqs)
    assert codes_of(together) == codes_of(alone)
    assert {name: row.finish_reason for name, row in together.items()} == {
        name: row.finish_reason for name, row in alone.items()
    }


def test_seeds_and_sampling_are_obeyed(alone: dict[str, EngineRow]) -> None:
    codes = codes_of(alone)
    assert codes["plain"] != codes["same words, other seed"]
    assert len(codes["half greedy"]) >= 5


def test_cloned_voices_do_not_mix(tiny_model: Callable[[str], Qwen3TTS]) -> None:
    requests = [
        ask("icl", task="base", reference=voice("a", 0.8), max_frames=6),
        ask("other voice", task="base", reference=voice("b", 1.1), max_frames=8),
        ask("x-vector", task="base", reference=voice("a", 0.8), x_vector_only=True, max_frames=4),
        ask("whole text", task="base", reference=voice("b", 1.1), non_streaming=True, max_frames=5),
    ]
    model = tiny_model("base")
    single = decode(model, requests, 1)
    assert codes_of(decode(model, requests[::-1], 4)) == codes_of(single)
    assert len({str(codes) for codes in codes_of(single).values()}) == 4


def test_max_frames_keeps_that_many_and_one_more_code_decides(tiny_model: Callable[[str], Qwen3TTS]) -> None:
    model = tiny_model("custom_voice")
    natural = decode(model, [ask("natural", **NATURAL)], 1)["natural"]
    frames = len(natural.codes)
    assert (natural.finish_reason, natural.eos) == ("stop", True)
    assert 2 < frames < 60

    budgets = [1, frames - 1, frames, frames + 1]
    rows = decode(model, [ask(str(budget), **{**NATURAL, "max_frames": budget}) for budget in budgets], 4)
    for budget in budgets:
        row, stops = rows[str(budget)], budget >= frames
        assert (row.finish_reason, row.eos) == (("stop", True) if stops else ("length", False))
        assert torch.equal(row.codes, natural.codes[:budget])


def test_no_eos_below_min_new_tokens(tiny_model: Callable[[str], Qwen3TTS]) -> None:
    model = tiny_model("custom_voice")
    frames = len(decode(model, [ask("a", **NATURAL)], 1)["a"].codes)
    late = SamplingParams(do_sample=False, subtalker_dosample=False, min_new_tokens=frames + 3)
    row = decode(model, [ask("a", **{**NATURAL, "sampling": late})], 1)["a"]
    assert len(row.codes) >= frames + 3


def test_gathers_a_window_then_lets_no_one_in_until_it_is_done(tiny_model: Callable[[str], Qwen3TTS]) -> None:
    model = tiny_model("custom_voice")
    runner, preparer = LockstepRunner(model, 2), Preparer(model)
    assert (runner.room, runner.busy) == (2 * LOOK_AHEAD, False)
    for i in range(4):
        runner.add(preparer.prepare(ask(str(i), text="word " * (i + 1))))
    assert runner.room == 0
    ended = []
    while runner.busy:
        ended += [row.request_id for row in runner.step()]
        assert runner.room == (0 if runner.busy else 4)
    assert [set(ended[:2]), set(ended[2:])] == [{"2", "3"}, {"0", "1"}]  # like lengths together, longest first


def test_cancel_and_evict_leave_the_others_untouched(tiny_model: Callable[[str], Qwen3TTS]) -> None:
    model = tiny_model("custom_voice")
    runner, preparer = LockstepRunner(model, 3), Preparer(model)
    requests = [ask(name, seed=seed, max_frames=6) for seed, name in enumerate("abcd")]
    expected = codes_of(decode(model, requests, 1))

    rows = [preparer.prepare(request) for request in requests]
    for row in rows:
        runner.add(row)
    assert runner.cancel("d")  # waiting
    for _ in range(3):
        assert runner.step() == []
    assert runner.cancel("b")  # decoding
    assert not runner.cancel("b")
    assert not runner.cancel("never seen")
    ended = {}
    while runner.busy:
        ended |= {row.request_id: row for row in runner.step()}
    assert codes_of(ended) == {name: expected[name] for name in "ac"}

    for row in rows:
        runner.add(row)
    runner.step()
    evicted = runner.evict()
    assert {row.request_id for row in evicted} == set("abcd")
    assert (runner.busy, runner.room) == (False, 6)
    for row in evicted:
        runner.add(row)
    ended = {}
    while runner.busy:
        ended |= {row.request_id: row for row in runner.step()}
    assert codes_of(ended) == expected


def test_result_codes_are_of_the_codebooks(alone: dict[str, EngineRow]) -> None:
    for row in alone.values():
        codes = row.codes.numpy()
        assert codes.shape[1] == 16
        assert codes.min() >= 0
        assert codes.max() < 2_048
        assert np.issubdtype(codes.dtype, np.integer)
        assert row.metrics.keys() >= {"queue_s", "prefill_s", "decode_s"}


def test_a_row_whose_numbers_are_lost_ends_as_an_error_and_alone(
    tiny_model: Callable[[str], Qwen3TTS], alone: dict[str, EngineRow]
) -> None:
    model = tiny_model("custom_voice")
    runner, done = LockstepRunner(model, 7), {}
    with torch.inference_mode():
        for request in mixed_requests():
            runner.add(Preparer(model).prepare(request))
        runner.step()
        batch = runner._batch
        lost = batch.rows[2].request_id
        batch._hidden[2, 0] = torch.nan
        while runner.busy:
            done |= {row.request_id: row for row in runner.step()}
    row = done.pop(lost)
    assert (row.finish_reason, row.eos, len(row.codes)) == ("error", False, 1)
    assert codes_of(done) == {name: codes for name, codes in codes_of(alone).items() if name != lost}
