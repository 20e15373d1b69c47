"""Long texts in pieces: where they are cut, and that nothing is lost, too long, or left with nothing to speak."""

from __future__ import annotations

import textwrap
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_batch.dataset.spoken_text import has_speech
from tts_batch.plan.split import split_text

# What texts are made of: words and marks of several scripts, numbers, quotes, spaces of all sorts, and torn pieces.
_BITS = st.sampled_from(
    ["Hello", " there", "Dr.", "U.S.", "3.14", "1,000", "10:30", "第三", "句子", "。", "！", "？", "……", "，",
     "「", "」", "コンピュータ", "학교", "é", "e\u0301", "ü", "\u0301", ".", "!", "?", "...", ",", ";", ":", "—",
     '"', "'", "(", ")", " ", "  ", "\n", "\n\n", "\t", "\xa0", "👩\u200d👧", "x" * 30, "字" * 30]
)  # fmt: skip
TEXTS = st.lists(_BITS, min_size=1, max_size=60).map("".join) | st.text(max_size=200)


def unspaced(text: str) -> str:
    return "".join(text.split())


@given(TEXTS, st.integers(1, 80))
def test_nothing_is_lost_and_no_piece_is_too_long(text: str, limit: int) -> None:
    pieces = split_text(text, limit)
    assert unspaced("".join(pieces)) == unspaced(text)
    assert all(len(piece.strip()) <= limit for piece in pieces)
    assert len(pieces) == 1 or all(piece == piece.strip() != "" for piece in pieces)


@given(TEXTS, st.integers(20, 80))
def test_a_text_that_fits_is_not_touched(text: str, limit: int) -> None:
    if len(text.strip()) <= limit:
        assert split_text(text, limit) == [text]


@given(st.lists(_BITS.filter(has_speech), min_size=1, max_size=40).map(" ".join), st.integers(30, 80))
def test_every_piece_has_something_to_speak(text: str, limit: int) -> None:
    assert all(map(has_speech, split_text(text, limit)))


@given(st.lists(st.sampled_from(["One two three.", "Four five!", "Is it six?"]), min_size=2, max_size=30), st.data())
def test_sentences_stay_whole(sentences: list[str], data: st.DataObject) -> None:
    limit = data.draw(st.integers(14, 60))
    pieces = split_text(" ".join(sentences), limit)
    assert " ".join(pieces) == " ".join(sentences)
    assert all(piece[-1] in ".!?" for piece in pieces)
    as_words = " ".join(sentence.replace(" ", "_") for sentence in sentences)
    assert len(pieces) == len(textwrap.wrap(as_words, limit)), "more pieces than needed"


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("He saw Dr. Smith today. She was out.", ["He saw Dr. Smith today.", "She was out."]),
        ("It is 3.14 or 1,000.5 now. Is it so?", ["It is 3.14 or 1,000.5 now.", "Is it so?"]),
        ("We met at 10:30. It rained a lot there.", ["We met at 10:30.", "It rained a lot there."]),
        ("In the U.S. Army they do. J. K. Rowling.", ["In the U.S. Army they do.", "J. K. Rowling."]),
        ("Am 3. Mai kam z.B. Max. Er war da, ja.", ["Am 3. Mai kam z.B. Max.", "Er war da, ja."]),
        ('"Is it so?" she asked him. "It is so."', ['"Is it so?" she asked him.', '"It is so."']),
        ("Go to example.com now. Then read it all.", ["Go to example.com now.", "Then read it all."]),
        ("Wait... what is it? Nothing at all, sir.", ["Wait... what is it?", "Nothing at all, sir."]),
        ("no capitals here at all. none, really.", ["no capitals here at all.", "none, really."]),
        ("A first line of a poem\nand the second one", ["A first line of a poem", "and the second one"]),
        ("A title\n\nAnd then some longer text, yes.", ["A title", "And then some longer text, yes."]),
        ("One long sentence, with a comma, and on", ["One long sentence,", "with a comma, and on"]),
        ("nothing but words one after the other", ["nothing but words", "one after the other"]),
        ("今天天气很好。我们去公园玩吧!你好吗?我很好.他说:“好的。”后来他们走了很远很远的路。",
         ["今天天气很好。我们去公园玩吧!", "你好吗?我很好.他说:“好的。”", "后来他们走了很远很远的路。"]),
        ("价格是3.14元，真的很便宜，所以我们买了很多很多的东西",
         ["价格是3.14元，真的很便宜，", "所以我们买了很多很多的东西"]),
        ("使用PyTorch训练模型然后部署到服务器上面去看看效果",
         ["使用PyTorch训练模型然", "后部署到服务器上面去看看效果"]),
        ("コンピュータのきょうしつにはいってすわった", ["コンピュータのきょうし", "つにはいってすわった"]),
        ("e\u0301" * 20, ["e\u0301" * 10, "e\u0301" * 10]),
    ],
)  # fmt: skip
def test_where_texts_are_cut(text: str, pieces: list[str]) -> None:
    limit = max(20, *map(len, pieces))
    assert split_text(text, limit) == pieces


def test_b06_forty_sentences_and_a_long_run() -> None:
    marks = "。.!?"
    sentences = [f"第{n}句话说的是今天的天气很好{marks[n % 4]}" for n in range(40)]
    sentences[20] = "无" * 400
    text = "".join(sentences)
    pieces = split_text(text, 120)
    assert "".join(pieces) == text
    assert max(map(len, pieces)) <= 120
    within_the_run = [piece for piece in pieces if piece[-1] not in marks]
    assert all(piece.count("无") > 60 for piece in within_the_run)
    assert len(within_the_run) <= 4


def test_there_are_no_more_pieces_than_needed_and_none_is_a_leftover() -> None:
    pieces = split_text("Ten words in a sentence make it about this long. " * 9, 200)
    assert [len(piece) for piece in pieces] == [146, 146, 146]


def test_a_very_long_text_is_cut_at_once() -> None:
    began = time.monotonic()
    assert len(split_text("字" * 100_000, 200)) == 500
    assert len(split_text("Some words, and a stop. " * 20_000, 200)) == 2_500
    for mark in ".,":
        assert split_text(mark * 5_000 + "a", 200)[-1][-1] == "a"
    assert time.monotonic() - began < 20
