"""Workloads: reproducible requests with the lengths of speech."""

from __future__ import annotations

import numpy as np
import pytest

from tts_batch.bench.workload import Workload
from tts_batch.engine.request import SpeechRequest


def count_tokens(text: str) -> int:
    return len(text.split())


def fields_of(requests: list[SpeechRequest]) -> list[tuple[object, ...]]:
    """All fields in which requests can differ."""
    return [
        (r.request_id, r.text, r.seed, r.max_frames, r.x_vector_only, r.reference.key, r.reference.text)
        for r in requests
        if r.reference is not None
    ]


def test_rows_are_the_same_every_time() -> None:
    one, again, other = (Workload("seed-tts", 40, 7, seed=seed).requests(count_tokens) for seed in (0, 0, 1))
    assert fields_of(one) == fields_of(again)
    assert len({row.seed for row in one}) == 40
    assert not {text for _, text, *_ in fields_of(one)} & {text for _, text, *_ in fields_of(other)}
    for row, same in zip(one, again, strict=True):
        np.testing.assert_array_equal(row.reference.load(), same.reference.load())


def test_lengths_are_those_of_speech() -> None:
    frames = np.array([row.max_frames for row in Workload("seed-tts", num_references=8).requests(count_tokens)])
    assert frames.size == 1_088
    assert (frames.min() >= 12, frames.max() <= 200) == (True, True)
    assert frames.mean() == pytest.approx(52, abs=2)
    assert np.quantile(frames, [0.05, 0.95]) == pytest.approx([22, 98], abs=6)


def test_fixed_rows_are_equally_long() -> None:
    rows = Workload("fixed", 9, 2, x_vector_only=True).requests(count_tokens)
    assert {(row.max_frames, row.x_vector_only) for row in rows} == {(52, True)}


def test_texts_match_the_length_of_their_speech() -> None:
    for request in Workload("seed-tts", 60, 4).requests(count_tokens):
        assert count_tokens(request.text) == round(request.max_frames / 3.5)
        assert request.sampling.min_new_tokens == request.max_frames + 1


def test_references_are_voices_in_rotation() -> None:
    rows = Workload("seed-tts", 7, 3).requests(count_tokens)
    assert [row.reference.key for row in rows] == [f"voice{i % 3}" for i in range(7)]
    for row in rows[:3]:
        wave = row.reference.load()
        assert (wave.dtype, wave.ndim) == (np.float32, 1)
        assert 3 <= wave.size / 24_000 <= 6
        assert 0.1 < np.abs(wave).max() < 1
    first, second = (row.reference.load() for row in rows[:2])
    assert not np.array_equal(first[:9_000], second[:9_000])
