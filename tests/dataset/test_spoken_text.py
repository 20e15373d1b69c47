"""Notes on texts that will probably sound wrong; the texts themselves stay as they are."""

from __future__ import annotations

import pytest

from tts_batch.dataset.notes import Notes
from tts_batch.dataset.spoken_text import check_text

WORDS = {
    "tags are spoken": "markup",
    "entities": "entities",
    "Markdown": "Markdown",
    "escapes": "escapes",
    "invisible": "invisible",
    "look alike": "look-alikes",
    "phonetic": "phonetic",
    "script of none": "other script",
    "U+FFFD, the mark": "damage",
    "an error or a null": "cell error",
}


def found(*texts: str) -> dict[str, str]:
    notes = Notes()
    for number, text in enumerate(texts, start=1):
        check_text(text, notes, f"t.csv:{number}")
    return {next(kind for words, kind in WORDS.items() if words in note): note for note in notes.sentences()}


@pytest.mark.parametrize(
    ("text", "kind", "example"),
    [
        ('<speak>Hello.<break time="1s"/></speak>', "markup", "<speak>"),
        ("Hello <b>there</b>", "markup", "<b>"),
        ("Hello<br>there", "markup", "<br>"),
        ("Hello <!-- quietly --> there", "markup", "<!--"),
        ("Hello <|im_end|> there", "markup", "<|im_end|>"),
        ('<prosody rate="slow">Hello', "markup", "<prosody"),
        ("Tom &amp; Jerry", "entities", "&amp;"),
        ("It&#39;s here", "entities", "&#39;"),
        ("It&#x2019;s here", "entities", "&#x2019;"),
        ("This is **important** now", "Markdown", "**important**"),
        ("This is *important* now", "Markdown", "*important*"),
        ("# A heading", "Markdown", "# "),
        ("See [the page](https://host/a)", "Markdown", "[the page]"),
        ("Call `main` now", "Markdown", "`main`"),
        (r"One line.\nAnother.", "escapes", r"\n"),
        (r"caf\u00e9", "escapes", r"\u00e9"),
        ("hy\u00adphen", "invisible", "U+00AD in"),
        ("hyphe\u200bnation", "invisible", "U+200B in"),
        ("\u202ahyphenation\u202c", "invisible", "U+202A"),
        ("words.\ufeff", "invisible", "U+FEFF"),
        ("a\u200db", "invisible", "U+200D"),
        ("\u0440aypal", "look-alikes", "\u0440aypal"),
        ("\u0391pple", "look-alikes", "\u0391pple"),
        ("ðə bˈoʊt lˈɛft", "phonetic", "ðə"),
        ("#N/A", "cell error", "#N/A"),
        ("#NAME?", "cell error", "#NAME?"),
        ("NaN", "cell error", "NaN"),
        (" null ", "cell error", " null "),
    ],
)
def test_what_is_noted_with_an_example(text: str, kind: str, example: str) -> None:
    notes = found(text)
    assert kind in notes
    assert example in notes[kind].replace("\\\\", "\\")
    assert notes[kind].isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "Hello there. How are you today?",
        "1 < 2 and 3 > 2, I <3 it, x<y",
        "AT&T, R&D; Marks & Spencer",
        "2 * 3 * 4 = 24, and a footnote*",
        "snake_case, #1, C# and [sic]",
        "Привет, 한국, カナ, 5 μm, α-Strahlung, 3π, naïve",
        "\U0001f469\u200d\U0001f469\u200d\U0001f467 family",
        "Who? Me! – “no”, ‘yes’… 5 £",
    ],
)
def test_what_is_ordinary(text: str) -> None:
    assert found(text) == {}


def test_counts_and_the_first_example() -> None:
    notes = found("Fine.", "One<br>two", "Three<p>four", "Five<i>six")
    assert notes["markup"].endswith("(3 rows, the first is t.csv:2: '<br>')")


def test_examples_are_short() -> None:
    assert len(found("<b " + "x" * 9000 + ">a")["markup"]) < 200
    assert len(found("x" * 9000 + "\u00ad")["invisible"]) < 200


@pytest.mark.timeout(20)
@pytest.mark.parametrize("piece", ["[", "**a ", "_", "`", "<a ", "&", "*a", "<|", "\\", "\u200d", "aа"], ids=ascii)
def test_long_texts_are_looked_through_in_linear_time(piece: str) -> None:
    found("Hello " + piece * 300_000)
