"""Lists of ids and texts without a separator of their own, and lines that are not to be spoken at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dataset.support import ReadRows
from tts_batch.errors import UsageError

SAID = ["The boat left at dawn.", "Nobody saw it go.", "It was cold on the pier."]


def lines(line: Callable[[int, str], str], texts: list[str] = SAID) -> str:
    return "".join(line(i, text) + "\n" for i, text in enumerate(texts))


LISTS = {
    "Kaldi, AISHELL": lines(lambda i, text: f"BAC009S0002W012{i} {text}"),
    "Kaldi, VCTK": lines(lambda i, text: f"p225_00{i} {text}"),
    "LibriSpeech": lines(lambda i, text: f"84-121123-000{i} {text.upper()}", [text[:-1] for text in SAID]),
    "ESPnet, two spaces": lines(lambda i, text: f"LJ001-000{i}  {text}"),
    "JSUT": lines(
        lambda i, text: f"BASIC5000_000{i}:{text}",
        ["水をマレーシアから買う。", "木曜日:停戦会談は終了。", "上院議員は私がデータ。"],
    ),
}


@pytest.mark.parametrize("name", ["text", "text.txt", "transcripts.list"])
@pytest.mark.parametrize("content", LISTS.values(), ids=LISTS)
def test_an_id_before_a_text_is_not_spoken(read: ReadRows, content: str, name: str) -> None:
    rows = read.written(name, content)
    for row, line in zip(rows, content.splitlines(), strict=True):
        assert line.startswith(row.id) and line.removeprefix(row.id).lstrip(" :") == row.text and row.text
    assert "id ← field1, text ← field2" in read.reports[0] and "without a header" in read.reports[0]


UNCLEAR = {
    "one line": "p225_001 Please call Stella.\n",
    "two lines": "p225_001 Please call Stella.\np225_002 Ask her.\n",
    "short ids": lines(lambda i, text: f"utt{i} {text}"),
    "numbers": lines(lambda i, text: f"00{i:04} {text}"),
    "a numbered list": lines(lambda i, text: f"{i + 1}. {text}"),
    "brackets": lines(lambda i, text: f"[{i}] {text}"),
    "a file and a text": "a.wav The boat left.\n",
    "commas": "a.wav,The boat left.\n",
    "wav.scp": lines(lambda i, _: f"BAC009S000{i} /data/{i}.wav"),
    "utt2spk": lines(lambda i, _: f"84-121123-000{i} 84-121123"),
    "one JSUT line": "BASIC5000_0001:水をマレーシアから買う。\n",
}


@pytest.mark.parametrize("content", UNCLEAR.values(), ids=UNCLEAR)
def test_what_may_be_ids_or_words_is_refused_with_both_readings(read: ReadRows, content: str) -> None:
    with pytest.raises(UsageError, match="lines of text, or of an id and a text, as in"):
        read.written("t.txt", content)
    assert read.written("t.txt", f"text\n{content}")[0].text == content.splitlines()[0]
    first = read.written("t.txt", content, map={"id": "field1", "text": "field2"})[0]
    assert first.text and first.id and len(first.id + first.text) < len(content.splitlines()[0])


OTHERS = {
    "SubRip": (
        "1\n00:00:01,000 --> 00:00:02,000\nHello there.\n\n2\n00:00:03,000 --> 00:00:04,000\nBye.\n",
        "subtitles",
    ),
    "WebVTT": ("WEBVTT\n\n00:01.000 --> 00:02.000 align:left\nHello there.\n", "subtitles"),
    "Festival": (
        '( arctic_a0001 "Author of the danger trail." )\n( arctic_a0002 "Not at all." )\n',
        "a list of Festival",
    ),
    "wav.scp with commands": (lines(lambda i, _: f"u{i} sph2pipe -f wav {i}.sph |"), "no list of a known toolkit"),
}


@pytest.mark.parametrize(("content", "words"), OTHERS.values(), ids=OTHERS)
def test_what_is_no_list_of_texts_is_named(read: ReadRows, content: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read.written("t.txt", content)


@pytest.mark.parametrize(
    "content",
    [
        lines(lambda _, text: text),
        "1984 was a good year.\n2001 was not.\n1999 came between.\n",
        "2024-01-05 was a Friday.\n2024-01-06 was not.\n2024-01-07 neither.\n",
        "Anna: Hello there.\nBen: Good morning.\nAnna: Bye.\n",
        "10:30 is the time.\n10:45 is too late.\n11:00 is worse.\n",
        "B2 is a level.\n",
        "Chapter 1: the boat.\nChapter 2: the pier.\nChapter 3: the end.\n",
        "Covid-19 came.\nNobody knew.\nCovid-19 went.\n",
    ],
)
def test_sentences_are_spoken_whole(read: ReadRows, content: str) -> None:
    assert [row.text for row in read.written("t.txt", content)] == content.splitlines()


_IDS = st.from_regex(r"[A-Za-z]{1,4}[0-9]{2,6}([_-][0-9]{2,5}){0,2}", fullmatch=True)


@given(ids=st.lists(_IDS, min_size=1, max_size=6, unique=True), separator=st.sampled_from([" ", ":", "\t", "|", " | "]))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_id_is_ever_spoken(read: ReadRows, ids: list[str], separator: str) -> None:
    content = "".join(f"{each}{separator}{SAID[i % 3]}\n" for i, each in enumerate(ids))
    try:
        rows = read.written("t.txt", content)
    except UsageError:
        return
    if len(ids) > 1 or separator not in " :":
        assert [(row.id, row.text.strip()) for row in rows] == [(each, SAID[i % 3]) for i, each in enumerate(ids)]
