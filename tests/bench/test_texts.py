"""The texts of a workload: tokens are counted once a word, and add up to those of the whole text."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tts_batch.bench.workload import FRAMES_PER_TEXT_TOKEN, WORDS, Workload
from tts_batch.model.text_tokenizer import TextTokenizer
from tts_batch.model.tiny import build_tiny


def tiny_tokens() -> Callable[[str], int]:
    tokenizer = TextTokenizer(build_tiny("tiny-random", "base"))
    return lambda text: len(tokenizer.encode(text))


@pytest.mark.parametrize("count_tokens", [tiny_tokens, lambda: len], ids=["tokens", "characters"])
def test_a_text_has_the_tokens_that_it_was_made_for(count_tokens: Callable[[], Callable[[str], int]]) -> None:
    count = count_tokens()
    longest_word = max(count(f" {word}") for word in WORDS)
    for request in Workload("seed-tts", num_rows=200, num_references=3).requests(count):
        num_tokens, wanted = count(request.text), round(request.max_frames / FRAMES_PER_TEXT_TOKEN)
        assert wanted <= num_tokens < wanted + longest_word + 1


def test_no_word_is_counted_twice() -> None:
    counted: list[str] = []
    Workload("seed-tts", num_rows=300, num_references=3).requests(lambda text: counted.append(text) or len(text))
    assert len(counted) == 1 + 2 * len(WORDS)
