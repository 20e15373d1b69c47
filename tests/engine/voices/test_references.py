"""References: loaded once, encoded once, remembered within bounds; errors stay with their key."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.engine.asking import hum, voice
from tts_batch.engine.voices.encoder import ReferenceEncoder
from tts_batch.engine.voices.references import References
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.speaker_encoder import SpeakerEncoder


class Loads:
    """Counts what is loaded."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def voice(self, key: str, seconds: float = 0.3, **fields: object):
        def load() -> np.ndarray:
            self.keys.append(key)
            return hum(seconds)

        return voice(key, load=load, **fields)


@pytest.fixture
def model(tiny_model: Callable[[str], Qwen3TTS]) -> Qwen3TTS:
    return tiny_model("base")


def test_equals_the_encoders_and_loads_once(model: Qwen3TTS) -> None:
    loads, references = Loads(), References(model)
    x_vector, codes = references.encode(loads.voice("a"), with_codes=True)
    assert torch.equal(x_vector, model.speaker_encoder.embed(hum(0.3)))
    assert codes.dtype == torch.int16
    assert torch.equal(codes.long(), model.speech_tokenizer.encode(hum(0.3)))
    again = references.encode(loads.voice("a"), with_codes=True)
    assert again[0] is x_vector
    assert again[1] is codes
    assert loads.keys == ["a"]


def test_codes_wanted_later_do_not_load_again(model: Qwen3TTS) -> None:
    loads, references = Loads(), References(model)
    x_vector, codes = references.encode(loads.voice("a"), with_codes=False)
    assert codes is None
    later, codes = references.encode(loads.voice("a"), with_codes=True)
    assert later is x_vector
    assert torch.equal(codes, model.speech_tokenizer.encode(hum(0.3)))
    assert references.encode(loads.voice("a"), with_codes=False)[1] is None
    assert loads.keys == ["a"]


def test_what_is_given_is_not_computed(model: Qwen3TTS) -> None:
    loads, references = Loads(), References(model)
    given = {"codes": np.full((3, 16), 5, dtype=np.int16), "x_vector": np.ones(64, dtype=np.float32)}
    x_vector, codes = references.encode(loads.voice("a", **given), with_codes=True)
    assert x_vector.tolist() == [1.0] * 64
    assert codes.tolist() == [[5] * 16] * 3
    assert loads.keys == []


def test_the_least_recently_used_go_first(model: Qwen3TTS) -> None:
    loads, references = Loads(), References(model, max_entries=2)
    for key in ("a", "b", "a", "c", "a", "b"):
        references.encode(loads.voice(key), with_codes=False)
    assert loads.keys == ["a", "b", "c", "b"]


def test_bytes_are_bounded(model: Qwen3TTS) -> None:
    loads = Loads()
    audio_bytes = hum(0.3).nbytes
    references = References(model, max_bytes=audio_bytes + 2_000)  # x-vector and codes: under 1,000 bytes a voice
    references.encode(loads.voice("a"), with_codes=False)
    references.encode(loads.voice("b"), with_codes=False)  # its audio drives out a's
    references.encode(loads.voice("b"), with_codes=True)  # codes instead of audio: room for another
    references.encode(loads.voice("a"), with_codes=True)
    references.encode(loads.voice("b"), with_codes=True)
    assert loads.keys == ["a", "b", "a"]


class PassingError(ValueError):
    """As the toolkit's own errors say of themselves."""

    transient = True


class LastingError(OSError):
    transient = False


@pytest.mark.parametrize("error", [ValueError("not a clip"), LastingError("not a clip")])
def test_an_error_is_raised_again_without_another_load(model: Qwen3TTS, error: Exception) -> None:
    calls = []

    def load() -> np.ndarray:
        calls.append(1)
        raise error

    references = References(model)
    for _ in range(2):
        with pytest.raises(type(error), match="not a clip"):
            references.encode(voice("a", load=load), with_codes=True)
    assert calls == [1]


@pytest.mark.parametrize("error", [TimeoutError("no answer"), PassingError("no answer")])
def test_what_may_pass_is_tried_again_ever_more_rarely(
    model: Qwen3TTS, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    now_s, calls = [100.0], []
    monkeypatch.setattr("tts_batch.engine.voices.references.time.monotonic", lambda: now_s[0])
    is_out = True

    def load() -> np.ndarray:
        calls.append(now_s[0])
        if is_out:
            raise error
        return hum(0.3)

    references, reference = References(model), voice("a", load=load)
    while now_s[0] < 110:
        with pytest.raises(type(error), match="no answer"):
            references.encode(reference, with_codes=True)
        now_s[0] += 0.25
    assert calls == [100.0, 100.25, 101.25, 103.25, 107.25]
    is_out, now_s[0] = False, 120.0
    references.load(reference, with_codes=True)
    references.encode_loaded()
    assert references.encode(reference, with_codes=True)[1] is not None
    assert calls[-1:] == [120.0]


def test_several_loaded_are_encoded_together_and_once(model: Qwen3TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    bursts, encode = [], ReferenceEncoder.encode

    def watched(self: ReferenceEncoder, clips: list[np.ndarray], with_codes: list[bool]) -> list:
        bursts.append(with_codes)
        return encode(self, clips, with_codes)

    monkeypatch.setattr(ReferenceEncoder, "encode", watched)
    loads, references = Loads(), References(model)
    wanted = [("a", True), ("b", False), ("a", False), ("c", False), ("c", True)]
    voices = {key: loads.voice(key, 0.3 + 0.1 * i) for i, key in enumerate("abc")}
    for key, with_codes in wanted:
        references.load(voices[key], with_codes=with_codes)
    references.encode_loaded()
    assert loads.keys == ["a", "b", "c"]
    assert bursts == [[True, False, True]]
    for key, with_codes in wanted:
        x_vector, codes = references.encode(voices[key], with_codes=with_codes)
        clip = voices[key].load()
        torch.testing.assert_close(x_vector, model.speaker_encoder.embed(clip), atol=2e-5, rtol=0)
        assert (codes is not None) == with_codes
        assert codes is None or torch.equal(codes, model.speech_tokenizer.encode(clip))
    references.encode_loaded()
    assert bursts == [[True, False, True], []]


def test_an_error_in_a_burst_is_its_own(model: Qwen3TTS) -> None:
    def load() -> np.ndarray:
        raise OSError("no such file")

    loads, references = Loads(), References(model)
    good, bad = loads.voice("good"), voice("bad", load=load)
    for reference in (bad, good):
        references.load(reference, with_codes=True)
    references.encode_loaded()
    assert references.encode(good, with_codes=True)[1] is not None
    with pytest.raises(OSError, match="no such file"):
        references.encode(bad, with_codes=True)
    assert loads.keys == ["good"]


def test_codes_that_are_none_fail_their_own_request(model: Qwen3TTS) -> None:
    references = References(model)
    odd = voice("odd", codes=np.array([["a"] * 16]))
    references.load(odd, with_codes=True)
    references.encode_loaded()
    with pytest.raises(TypeError, match="can't convert"):
        references.encode(odd, with_codes=True)


def test_upcoming_clips_fill_the_last_pass(model: Qwen3TTS, monkeypatch: pytest.MonkeyPatch) -> None:
    bursts, encode = [], ReferenceEncoder.encode

    def watched(self: ReferenceEncoder, clips: list[np.ndarray], with_codes: list[bool]) -> list:
        bursts.append(with_codes)
        return encode(self, clips, with_codes)

    monkeypatch.setattr(ReferenceEncoder, "encode", watched)
    monkeypatch.setattr(ReferenceEncoder, "num_spare", lambda self, num_clips: -num_clips % 4)
    loads, references = Loads(), References(model)
    voices = [loads.voice(str(i)) for i in range(6)]
    references.load_ahead([(reference, i != 4) for i, reference in enumerate(voices)])
    deadline_s = time.monotonic() + 10
    while len(loads.keys) < 6 or any(thread.name == "tts-batch-load" for thread in threading.enumerate()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    references.load(voices[0], with_codes=True)
    references.encode_loaded()
    references.load(voices[4], with_codes=True)
    references.encode_loaded()
    assert bursts == [[True] * 4, [True, True]]
    assert sorted(loads.keys) == list("012345")


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("too long"), ValueError("not a clip")])
def test_what_cannot_be_encoded_leaves_the_others_alone(
    model: Qwen3TTS, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    embed = SpeakerEncoder.embed_batch

    def failing(self: SpeakerEncoder, audio: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        if lengths.max() > 12_000:
            raise error
        return embed(self, audio, lengths)

    monkeypatch.setattr(SpeakerEncoder, "embed_batch", failing)
    loads, references = Loads(), References(model)
    voices = {key: loads.voice(key, seconds) for key, seconds in (("long", 0.6), ("short", 0.3))}
    for reference in voices.values():
        references.load(reference, with_codes=True)
    references.encode_loaded()
    assert references.encode(voices["short"], with_codes=True)[1] is not None
    for _ in range(2):
        with pytest.raises(type(error), match=str(error)):
            references.encode(voices["long"], with_codes=True)
    assert loads.keys == ["long", "short"]
