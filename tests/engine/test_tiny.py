"""The `tiny-noise` checkpoints end their clips by themselves, whatever is asked of them."""

from __future__ import annotations

import random

import pytest

from tests.engine.asking import GREEDY, ask, voice
from tts_batch.engine.generation import generate
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.request import EngineConfig, SamplingParams, SpeechRequest
from tts_batch.model.tiny import build_tiny
from tts_batch.model.tiny.build import SEEDS

NUM_ROWS = 10
BUDGET = 192  # frames: the least that a row of a table gets
WORDS = [
    *("the", "quick", "brown", "fox", "jumps", "over", "3.14", "lazy", "dogs"),
    *("Straße", "bonjour", "你好", "こんにちは", "Привет", "aloud"),
]


def draw_request(draw: random.Random, kind: str, i: int) -> SpeechRequest:
    fields: dict[str, object] = {
        "text": " ".join(draw.choices(WORDS, k=draw.randint(3, 40))),
        "task": kind,
        "seed": i,
        "max_frames": BUDGET,
        "language": draw.choice([None, "english", "german", "chinese"]),
        "non_streaming": draw.choice([None, True, False]),
        "sampling": GREEDY if i % 8 == 0 else SamplingParams(),
        "speaker": None,
    }
    if kind == "base":
        fields |= {"reference": voice(f"voice {i % 4}", 0.5 + i % 4), "x_vector_only": i % 3 == 0}
    else:
        fields["instruct"] = draw.choice([None, "Whisper softly in a sad tone."])
    if kind == "custom_voice":
        fields["speaker"] = draw.choice(["ryan", "eric", "vivian", "sohee"])
    return ask(f"{i}", **fields)


@pytest.mark.parametrize(("kind", "size"), SEEDS)
def test_clips_end_by_themselves_after_one_to_six_seconds(kind: str, size: str) -> None:
    draw = random.Random(0)
    requests = [draw_request(draw, kind, i) for i in range(NUM_ROWS)]
    engine = NativeEngine(EngineConfig(model=str(build_tiny("tiny-noise", kind, size)), device="cpu"))
    results = list(generate(engine, requests))
    engine.close()
    assert {result.finish_reason for result in results} == {"stop"}
    seconds = sorted(result.num_frames / 12.5 for result in results)
    assert seconds[0] > 0.8
    assert seconds[-1] < 8
    assert 1.5 < seconds[NUM_ROWS // 2] < 5
