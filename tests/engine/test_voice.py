"""The trained `tiny`: three kinds speak sentences, end by themselves, in voices that can be told apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.engine.asking import ask
from tts_batch.engine.generation import generate
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.request import EngineConfig, Reference, SamplingParams, SpeechRequest, SpeechResult
from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.tiny import build_tiny

SENTENCE = "The train leaves at seven in the morning."
FORTY_WORDS = (
    "The old man walked along the river in the morning and looked at the boats that were waiting for the wind, while "
    "his dog ran after the birds in the grass and came back with a large stick of wood."
)
BUDGET = 600  # frames: 48 s
SPEAKERS = ("ryan", "serena")
Speak = Callable[..., list[SpeechResult]]


@pytest.fixture(scope="module")
def speak() -> Iterator[Speak]:
    engines: dict[str, NativeEngine] = {}

    def make(kind: str, *asked: dict[str, object]) -> list[SpeechResult]:
        if kind not in engines:
            engines[kind] = NativeEngine(
                EngineConfig(model=str(build_tiny("tiny", kind)), device="cpu", dtype="float32")
            )
        results = {result.request_id: result for result in generate(engines[kind], _requests(kind, asked))}
        return [results[str(number)] for number in range(len(asked))]

    yield make
    for engine in engines.values():
        engine.close()


def _requests(kind: str, asked: tuple[dict[str, object], ...]) -> list[SpeechRequest]:
    """As a table's rows would ask: sampled as the checkpoint's own file says."""
    sampling = SamplingParams(**resolve_checkpoint(str(build_tiny("tiny", kind))).generation)
    usual = {"text": SENTENCE, "task": kind, "max_frames": BUDGET, "sampling": sampling, "non_streaming": True}
    if kind != "custom_voice":
        usual["speaker"] = None
    return [ask(str(number), **usual | fields) for number, fields in enumerate(asked)]


def seconds(result: SpeechResult) -> float:
    assert result.finish_reason == "stop"
    assert result.audio is not None
    return result.audio.size / 24_000


def spectrum(result: SpeechResult) -> np.ndarray:
    """What a voice sounds like on the whole: log power in bands of 94 Hz up to 6 kHz, the loudest frames' mean."""
    assert result.audio is not None
    frames = np.lib.stride_tricks.sliding_window_view(result.audio, 1024)[::512]
    power = np.abs(np.fft.rfft(frames * np.hanning(1024))[:, :256]) ** 2
    loud = power[power.sum(1) > np.median(power.sum(1))].mean(0)
    bands = np.log(loud.reshape(64, 4).sum(1) + 1e-9)
    return bands - bands.mean()


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("custom_voice", {"speaker": "ryan", "language": "english"}),
        ("custom_voice", {"speaker": "eric"}),
        ("voice_design", {"instruct": "A low male voice that speaks at a calm pace."}),
    ],
)
def test_a_sentence_ends_and_lasts_as_long_as_speech_does(speak: Speak, kind: str, fields: dict[str, object]) -> None:
    for result in speak(kind, *({**fields, "seed": seed} for seed in range(3))):
        assert 0.2 <= seconds(result) / len(SENTENCE.split()) <= 0.8
        assert result.audio is not None
        assert 0.02 < np.sqrt(np.mean(result.audio**2)) < 0.5


@pytest.mark.parametrize(("text", "low_s", "high_s"), [("Hello.", 0.3, 2.0), (FORTY_WORDS, 8.0, 32.0)])
def test_one_word_and_forty_words_end(speak: Speak, text: str, low_s: float, high_s: float) -> None:
    for result in speak("custom_voice", *({"text": text, "seed": seed} for seed in range(3))):
        assert low_s <= seconds(result) <= high_s


def test_speakers_are_heard_apart(speak: Speak) -> None:
    """Two clips of one speaker, of different sentences, are more alike than clips of two speakers."""
    texts = (SENTENCE, "There are nineteen chairs in the second room.")
    asked = [{"text": text, "speaker": name, "seed": 1} for name in SPEAKERS for text in texts]
    first, first_again, second, second_again = map(spectrum, speak("custom_voice", *asked))
    same = max(_distance(first, first_again), _distance(second, second_again))
    assert same < min(_distance(a, b) for a in (first, first_again) for b in (second, second_again))


def test_its_own_clips_are_cloned_with_and_without_transcript(speak: Speak) -> None:
    """A clone sounds more like its own reference than like another voice."""
    said = speak("custom_voice", *({"speaker": name, "seed": 1} for name in SPEAKERS))
    references = [_reference(name, result) for name, result in zip(SPEAKERS, said, strict=True)]
    text = "There are nineteen chairs in the second room."
    asked = [
        {"text": text, "reference": r, "x_vector_only": only, "seed": 1} for only in (False, True) for r in references
    ]
    for number, clone in enumerate(speak("base", *asked)):
        assert 0.2 <= seconds(clone) / len(text.split()) <= 0.8
        own, other = said[number % 2], said[1 - number % 2]
        assert _distance(spectrum(clone), spectrum(own)) < _distance(spectrum(clone), spectrum(other))


def _reference(name: str, result: SpeechResult) -> Reference:
    assert result.audio is not None
    audio = result.audio
    return Reference(key=name, load=lambda: audio, text=SENTENCE)


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).mean())
