"""References encoded together: in any mixture, each is what it is alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.asking import hum
from tests.model.speech_tokenizer.near_ties import sure
from tts_batch.engine.voices.encoder import ALONE, TOGETHER, ReferenceEncoder, Shapes
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.speaker_encoder import SpeakerEncoder

SMALL = Shapes(rows=(1, 4, 16), step=4_000, max_samples=100_000)


@pytest.fixture(scope="module")
def model(tiny_model: Callable[[str], Qwen3TTS]) -> Qwen3TTS:
    return tiny_model("base")


def clips_of(lengths: list[int]) -> list[np.ndarray]:
    """A voice of its own for each length in samples, with some breath."""
    breath = np.random.default_rng(5).normal(scale=0.01, size=max(lengths)).astype(np.float32)
    return [hum(n / 24_000, 90.0 + 17 * i % 200) + breath[:n] for i, n in enumerate(lengths)]


def check(model: Qwen3TTS, shapes: Shapes, clips: list[np.ndarray], with_codes: list[bool]) -> None:
    voices = ReferenceEncoder(model, shapes).encode(clips, with_codes)
    for clip, wants_codes, voice in zip(clips, with_codes, voices, strict=True):
        assert not isinstance(voice, Exception)
        x_vector, codes = voice
        torch.testing.assert_close(x_vector, model.speaker_encoder.embed(clip), atol=2e-5, rtol=0)
        if not wants_codes:
            assert codes is None
            continue
        expected, is_sure = model.speech_tokenizer.encode(clip).numpy(), sure(model.speech_tokenizer, clip)
        assert codes.shape == expected.shape
        np.testing.assert_array_equal(codes.numpy()[is_sure], expected[is_sure])


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.integers(2_400, 26_000), st.booleans()), max_size=20))
def test_any_mixture(model: Qwen3TTS, asked: list[tuple[int, bool]]) -> None:
    check(model, SMALL, clips_of([n for n, _ in asked]) if asked else [], [wants for _, wants in asked])


@pytest.mark.parametrize("shapes", [ALONE, TOGETHER, SMALL])
def test_half_a_second_beside_thirteen(model: Qwen3TTS, shapes: Shapes) -> None:
    clips = clips_of([12_000, 13 * 24_000 + 7, 24_000, 24_001, 19_199, 19_201, 25_600, 25_855])
    check(model, shapes, clips, [True] * 7 + [False])


def test_alone_is_bit_for_bit_what_the_modules_give(model: Qwen3TTS) -> None:
    clips = clips_of([30_001, 12_345])
    for clip, (x_vector, codes) in zip(clips, ReferenceEncoder(model).encode(clips, [True, True]), strict=True):
        assert torch.equal(x_vector, model.speaker_encoder.embed(clip))
        assert torch.equal(codes, model.speech_tokenizer.encode(clip))


def shapes_run(model: Qwen3TTS, lengths: list[int], monkeypatch: pytest.MonkeyPatch, memory: int) -> list[list[int]]:
    """Shapes of the passes over clips of these lengths; passes of more samples than `memory` run out of it."""
    shapes, embed = [], SpeakerEncoder.embed_batch

    def watched(self: SpeakerEncoder, audio: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        shapes.append(list(audio.shape))
        if audio.numel() > memory:
            raise torch.OutOfMemoryError
        return embed(self, audio, lengths)

    monkeypatch.setattr(SpeakerEncoder, "embed_batch", watched)
    voices = ReferenceEncoder(model, SMALL).encode([np.zeros(n, np.float32) for n in lengths], [False] * len(lengths))
    failed = [n for n, voice in zip(lengths, voices, strict=True) if isinstance(voice, torch.OutOfMemoryError)]
    assert failed == [n for n in lengths if n > memory]
    return shapes


@pytest.mark.parametrize(
    ("lengths", "shapes"),
    [
        ([5_000], [[1, 8_000]]),
        ([5_000, 3_000], [[4, 8_000]]),
        ([5_000] * 7, [[4, 8_000], [4, 8_000]]),
        ([3_000] * 9, [[16, 4_000]]),
        ([5_000, 30_000, 5_000, 3_000], [[1, 32_000], [4, 8_000]]),  # four times 32,000 is over the limit
        ([200_000], [[1, 200_000]]),
    ],
)
def test_passes_have_few_shapes(
    model: Qwen3TTS, monkeypatch: pytest.MonkeyPatch, lengths: list[int], shapes: list[list[int]]
) -> None:
    assert shapes_run(model, lengths, monkeypatch, memory=10**9) == shapes


def test_out_of_memory_takes_fewer_rows_and_fails_only_what_does_not_fit_alone(
    model: Qwen3TTS, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = shapes_run(model, [5_000] * 8 + [9_000] * 3, monkeypatch, memory=8_000)
    assert shapes.count([1, 8_000]) == 8
    assert shapes.count([1, 12_000]) == 3
