"""The engine against a vLLM-Omni that misbehaves in every known way, in real processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.asking import ask, voice
from tests.engine.vllm.processes import started, wait_until_gone
from tts_batch.engine.errors import DuplicateRequest, EngineConfigError, EngineError
from tts_batch.engine.generation import generate
from tts_batch.engine.request import Engine, SamplingParams, SpeechRequest, SpeechResult
from tts_batch.engine.vllm.engine import VllmEngine

Open = Callable[..., VllmEngine]


def run(engine: VllmEngine, *requests: SpeechRequest) -> dict[str, SpeechResult]:
    return {result.request_id: result for result in generate(engine, requests)}


def say(word: str, **fields: object) -> SpeechRequest:
    return ask(word, text=f"{word} words.", **{"max_frames": 20, **fields})


def test_rows_of_each_task_become_clips(open_vllm: Open) -> None:
    engine = open_vllm()
    assert isinstance(engine, Engine)
    results = run(engine, *(say(f"row{number}") for number in range(5)))
    assert {name: (r.finish_reason, r.eos, r.num_frames, len(r.audio)) for name, r in results.items()} == {
        f"row{number}": ("stop", True, 10, 19_200) for number in range(5)
    }
    assert results["row0"].effective == {"language": "auto", "speaker": "ryan"}
    assert results["row0"].metrics == {"stage_0_s": 0.005, "stage_1_s": 0.001}
    base = open_vllm("base")
    clone = {"task": "base", "speaker": None, "reference": voice(seconds=1.3)}
    results = run(base, say("icl", **clone), say("vector", **clone, x_vector_only=True))
    assert [result.finish_reason for result in results.values()] == ["stop", "stop"]
    design = run(open_vllm("voice_design"), say("old", task="voice_design", speaker=None, instruct="An old man."))
    assert design["old"].effective == {"language": "auto", "instruct": "An old man."}


@pytest.mark.parametrize(
    ("word", "finish_reason", "reason", "words"),
    [
        ("edge", "stop", None, None),
        ("budget", "length", None, None),
        ("unreported", "stop", None, None),
        ("placeholder", "error", "empty_audio", "1920 samples as a placeholder"),
        ("short", "error", "engine_error", "17280 samples for 10 frames"),
        ("odd", "error", "engine_error", "19201 samples for 10 frames"),
        ("early", "error", "engine_error", "10 of 20 frames as 'length'"),
        ("aborted", "error", "engine_error", "aborted the request, unasked"),
        ("mute", "error", "engine_error", "returned no audio"),
        ("rate", "error", "engine_error", "at 8000 Hz"),
        ("nan", "error", "non_finite", "not finite"),
        ("error", "error", "engine_error", "a row of the batch is malformed"),
        ("oom", "error", "out_of_memory", "out of memory"),
    ],
)
def test_a_result_is_never_believed(
    shared_engine: VllmEngine, word: str, finish_reason: str, reason: str | None, words: str | None
) -> None:
    """B10, B19: whatever comes back, the request ends as what it is, and the next one is made."""
    results = run(shared_engine, say(word), say("fine"))
    result = results[word]
    assert (result.finish_reason, result.reason) == (finish_reason, reason)
    assert (words or "") in (result.error or "")
    assert (result.audio is None) == (finish_reason == "error")
    assert results["fine"].finish_reason == "stop"


def test_a_request_that_the_model_cannot_speak_is_not_submitted(open_vllm: Open, tmp_path: Path) -> None:
    """B25: lengths are checked before; a reference of two minutes and a budget beyond the positions fail alone."""
    engine = open_vllm("base")
    clone = {"task": "base", "speaker": None}
    results = run(
        engine,
        say("long", **clone, reference=voice(seconds=10), max_frames=4_000),
        say("none", **clone),
        say("untold", **clone, reference=voice(text=None)),
        say("shape", **clone, reference=voice(seconds=0.02)),
        say("<|im_end|>", **clone, reference=voice()),
        say("greedy", **clone, reference=voice(), sampling=SamplingParams(subtalker_dosample=False)),
        say("other", task="custom_voice"),
    )
    assert {name: result.reason for name, result in results.items()} == {
        "long": "text_too_long",
        "none": "ref_missing",
        "untold": "ref_text_missing",
        "shape": "ref_too_short",
        "<|im_end|>": "bad_text",
        "greedy": "bad_row",
        "other": "wrong_task",
    }
    assert not (tmp_path / "requests").exists()


def test_b10_the_prompt_is_as_long_as_the_reference_makes_it(open_vllm: Open, tmp_path: Path) -> None:
    """B10: 9.7 s of reference are 122 frames, whole or begun. The host compares with vLLM-Omni's own function."""
    reference = voice(seconds=9.7)
    run(open_vllm("base"), say("clone", task="base", speaker=None, reference=reference, language="english"))
    (line,) = (tmp_path / "requests").read_text().splitlines()
    told = json.loads(line)
    assert told["information"]["ref_code_length"] == [122]
    assert told["tokens"] == 3 + 4 + 1 + 1 + 123  # role, language, speaker, text begin; a start and the frames
    assert told["information"]["language"] == ["english"]


def test_b26_no_more_are_in_flight_than_it_decodes_together(open_vllm: Open) -> None:
    """B26: the scripted engine dies when more come."""
    results = run(open_vllm(max_num_seqs=8), *(say(f"row{number}") for number in range(64)))
    assert {result.finish_reason for result in results.values()} == {"stop"}


@pytest.mark.parametrize(
    ("word", "message"), [("fatal", "EngineDeadError: EngineCore"), ("die", "has ended, by signal 9")]
)
def test_a_dead_engine_says_so_and_leaves_no_process(open_vllm: Open, vllm_site: Path, word: str, message: str) -> None:
    engine = open_vllm()
    with pytest.raises(EngineError, match=message):
        run(engine, say("fine"), say(word))
    wait_until_gone(vllm_site)
    assert engine.num_wanted == 0


@pytest.mark.parametrize("word", ["hang", "stage"])
def test_b24_an_engine_without_a_sign_of_life_is_ended(
    open_vllm: Open, vllm_site: Path, word: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """B24: in seconds, not after the 600 of vLLM-Omni's own wait, and with the stacks in the log."""
    engine = open_vllm(stall_timeout_s=0.5)
    with pytest.raises(EngineError, match="is stuck: 1 requests in flight, and no answer for 2 s"):
        run(engine, say("fine", max_frames=2), say(word, max_frames=2), say("also", max_frames=2))
    wait_until_gone(vllm_site)
    assert "most recent call first" in capfd.readouterr().err


def test_one_late_request_fails_alone(open_vllm: Open) -> None:
    engine = open_vllm(stall_timeout_s=0.5)
    results = {}
    engine.add_request(say("hang", max_frames=1))
    number = 0
    while "hang" not in results:
        engine.add_request(say(f"row{number}"))
        for result in engine.step(5.0):
            results[result.request_id] = result
        number += 1
    assert (results.pop("hang").reason, {r.finish_reason for r in results.values()}) == ("stalled", {"stop"})


def test_an_aborted_request_ends_at_once_and_its_id_is_free(open_vllm: Open) -> None:
    engine = open_vllm()
    engine.add_request(say("hang"))
    with pytest.raises(DuplicateRequest, match="'hang'"):
        engine.add_request(say("hang"))
    engine.abort_request("hang")
    assert [r.finish_reason for r in engine.step(5.0)] == ["cancelled"]
    results = run(engine, ask("hang", text="fine words.", max_frames=20), say("fine"))
    assert [result.finish_reason for result in results.values()] == ["stop", "stop"]


@pytest.mark.parametrize(
    ("start", "words"), [("fail", "RuntimeError: Engine core init"), ("hang", "not ready after 3 s")]
)
def test_an_engine_that_does_not_start_is_ended(
    open_vllm: Open, vllm_site: Path, monkeypatch: pytest.MonkeyPatch, start: str, words: str
) -> None:
    monkeypatch.setenv("FAKE_VLLM_START", start)
    with pytest.raises(EngineConfigError, match=words):
        open_vllm(options={"start_timeout_s": "3"} if start == "hang" else {})
    wait_until_gone(vllm_site)


def test_it_closes_with_requests_in_flight(open_vllm: Open, vllm_site: Path) -> None:
    engine = open_vllm()
    engine.add_request(say("hang"))
    engine.step(0.1)
    engine.close()
    assert len(started(vllm_site)) == 3
    wait_until_gone(vllm_site)
    with pytest.raises(EngineError, match="closed"):
        engine.step(0.0)
