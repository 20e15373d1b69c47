"""References: loaded once, encoded alone, remembered within bounds; errors stay with their key."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.engine.asking import hum, voice
from tts_batch.engine.references import References
from tts_batch.model.qwen3_tts import Qwen3TTS


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
    assert torch.equal(codes, model.speech_tokenizer.encode(hum(0.3)))
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


def test_an_error_is_raised_again_without_another_load(model: Qwen3TTS) -> None:
    calls = []

    def load() -> np.ndarray:
        calls.append(1)
        raise OSError("no such file")

    references = References(model)
    for _ in range(2):
        with pytest.raises(OSError, match="no such file"):
            references.encode(voice("a", load=load), with_codes=True)
    assert calls == [1]
