"""Lists without a header, as public toolkits write them: read right, or refused with the readings shown."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.dataset.support import ReadRows, reasons
from tts_batch.dataset.layouts import name_fields
from tts_batch.errors import UsageError

SAID = ["The boat left at dawn.", "Nobody saw it go.", "It was cold on the pier."]


def lines(*rows: tuple[str, ...], separator: str = "|") -> str:
    return "".join(separator.join(row) + "\n" for row in rows)


LAYOUTS = {
    "LJSpeech": lines(*((f"LJ00{i}", text) for i, text in enumerate(SAID))),
    "LJSpeech normalised": lines(*((f"LJ00{i}", f"{i} {text}", text) for i, text in enumerate(SAID))),
    "VITS, one speaker": lines(*((f"wavs/{i}.wav", text) for i, text in enumerate(SAID))),
    "VITS": lines(*((f"wavs/{i}.wav", str(i % 2), text) for i, text in enumerate(SAID))),
    "StyleTTS2": lines(*((f"kit/{i}.wav", text, str(i % 2)) for i, text in enumerate(SAID))),
    "StyleTTS2, names": lines(*((f"kit/{i}.wav", text, "anna") for i, text in enumerate(SAID))),
    "GPT-SoVITS": lines(*((f"vocal/{i}.wav", "anna", "EN", text) for i, text in enumerate(SAID))),
    "MeloTTS": lines(*((f"/data/{i}.wav", "EN-default", "EN", text) for i, text in enumerate(SAID))),
    "Bert-VITS2": lines(
        *((f"{i}.wav", "anna", "EN", text, "_ dh ah _", "0 0 1 0", "1 2 1") for i, text in enumerate(SAID))
    ),
    "Seed-TTS": lines(*((f"u{i}", "What is said.", f"p/{i}.wav", text) for i, text in enumerate(SAID))),
    "Seed-TTS with a result": lines(
        *((f"u{i}", "Yes.", f"p/{i}.wav", text, f"w/{i}.wav") for i, text in enumerate(SAID))
    ),
    "FastSpeech 2": lines(*((f"LJ00{i}", "LJSpeech", "{DH AH0 sp}", text) for i, text in enumerate(SAID))),
    "FastSpeech 2, ARPAbet": lines(*((f"LJ00{i}", "LJSpeech", "DH AH0 sp", text) for i, text in enumerate(SAID))),
    "Piper": lines(*((f"utt{i}", "anna", text) for i, text in enumerate(SAID))),
    "Coqui": lines(
        ("audio_file", "text", "speaker_name"), *((f"{i}.wav", text, "anna") for i, text in enumerate(SAID))
    ),
    "F5-TTS": lines(("audio_file", "text"), *((f"wavs/{i}.wav", text) for i, text in enumerate(SAID))),
    "XTTS": lines(
        ("audio_file", "text", "speaker_name"), *((f"wavs/{i}.wav", text, "@anna") for i, text in enumerate(SAID))
    ),
    "Matcha-TTS": lines(*((f"/data/LJ/wavs/LJ00{i}.wav", text) for i, text in enumerate(SAID))),
    "Matcha-TTS, speakers": lines(*((f"/data/vctk/p225_00{i}.flac", f"{i}", text) for i, text in enumerate(SAID))),
    "Tacotron 2": lines(*((f"DUMMY/LJ00{i}.wav", text) for i, text in enumerate(SAID))),
    "Mellotron": lines(*((f"/data/p225_00{i}.wav", text, f"{225 + i}") for i, text in enumerate(SAID))),
    "M-AILABS": lines(*((f"book_0{i}", text.upper(), text) for i, text in enumerate(SAID))),
    "LibriTTS": lines(*((f"84_121_00_{i}", text.upper(), text) for i, text in enumerate(SAID)), separator="\t"),
    "Piper, one speaker": lines(*((f"utt{i}", text) for i, text in enumerate(SAID))),
    "a field too many": lines(*((f"wavs/{i}.wav", text, "") for i, text in enumerate(SAID))),
    "AISHELL, tabs": lines(*((f"SSB{i}.wav", text) for i, text in enumerate(SAID)), separator="\t"),
    "semicolons": lines(*((f"wavs/{i}.wav", text) for i, text in enumerate(SAID)), separator=";"),
    "text first": lines(*((text, f"wavs/{i}.wav") for i, text in enumerate(SAID))),
    "dialogue": lines(*(("Anna", text) for text in SAID)),
    "plain lines": "".join(f"{text}\n" for text in SAID),
    "plain lines with a header": "text\n" + "".join(f"{text}\n" for text in SAID),
}


@pytest.mark.parametrize("suffix", ["txt", "list", "lst"])
@pytest.mark.parametrize("content", LAYOUTS.values(), ids=LAYOUTS)
def test_the_text_of_a_known_layout_is_spoken(read: ReadRows, content: str, suffix: str) -> None:
    rows = read.written(f"train.{suffix}", content)
    assert reasons(rows) == [None] * 3
    assert [row.text for row in rows] == SAID


IN_SHEETS = {
    "files": lines(*((f"wavs/{i}.wav", text) for i, text in enumerate(SAID)), separator=","),
    "ids": lines(*((f"LJ00{i}", f'"{text}"') for i, text in enumerate(SAID)), separator=","),
    "speakers": lines(*((f"LJ00{i}", "anna", text) for i, text in enumerate(SAID)), separator=";"),
    "LibriTTS": LAYOUTS["LibriTTS"],
    "LJSpeech": LAYOUTS["LJSpeech normalised"],
}


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
@pytest.mark.parametrize("content", IN_SHEETS.values(), ids=IN_SHEETS)
def test_a_first_line_that_is_clearly_a_row_is_no_header(read: ReadRows, content: str, suffix: str) -> None:
    assert [row.text for row in read.written(f"t.{suffix}", content)] == SAID
    assert "without a header" in read.reports[0]


@pytest.mark.parametrize("header", ["Nr.;Satz.", "Frage?;Was soll gesagt werden?", "2023;Satz", "Q1;Satz"])
def test_an_odd_header_is_no_row(read: ReadRows, header: str) -> None:
    content = f"{header}\n1;Hallo, du.\n2;Bis morgen.\n"
    with pytest.raises(UsageError, match="--map text="):
        read.written("t.csv", content)
    rows = read.written("t.csv", content, map={"text": header.split(";")[1]})
    assert [row.text for row in rows] == ["Hallo, du.", "Bis morgen."]
    assert read.written("t.csv", content.replace(header.split(";")[1], "text"))[0].text == "Hallo, du."


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("name", ["VITS", "StyleTTS2", "GPT-SoVITS", "Bert-VITS2", "Seed-TTS", "LJSpeech normalised"])
def test_a_row_is_enough(read: ReadRows, name: str, rows: int) -> None:
    content = "".join(LAYOUTS[name].splitlines(keepends=True)[:rows])
    assert [row.text for row in read.written("train.txt", content)] == SAID[:rows]


def test_what_else_a_list_holds(read: ReadRows) -> None:
    rows = read.written("train.list", LAYOUTS["GPT-SoVITS"])
    assert {row.language for row in rows} == {"english"}
    assert rows[0].id == "vocal/0.wav" and rows[0].extras == {"speaker_id": "anna"} and rows[0].ref_audio is None
    assert any("'speaker_id' is not used" in note for note in read.notes)
    assert read.reports == [
        "train.list: list, UTF-8, separated by '|', without a header; id ← field1, text ← field4, language ← field3"
    ]
    (row, *_) = read.written("train.txt", LAYOUTS["Seed-TTS"])
    assert row.ref_text == "What is said." and row.ref_audio is not None
    (row, *_) = read.written("train.txt", lines(("a.wav", "Vivian", "Hello there.")))
    assert row.speaker == "vivian"


@pytest.mark.parametrize("text", ["胡桃|ZH|今天天气很好。", "派蒙|JP|おはようございます。"])
def test_speakers_of_other_scripts(read: ReadRows, text: str) -> None:
    (row,) = read.written("a.list", f"vocal/a.wav|{text}\n")
    assert row.text == text.split("|")[2] and row.language in {"chinese", "japanese"}


AMBIGUOUS = {
    "words": (
        lines(("a.wav", "anna", "hello"), ("b.wav", "ben", "goodbye")),
        ["id|speaker_id|text", "id|text|speaker_id"],
    ),
    "a text or an id": (lines(("The boat left", "anna")), ["id|text", "speaker_id|text"]),
    "a word and who says it": (lines(("Hello", "anna"), ("Yes", "anna")), ["id|text", "text|speaker_id"]),
    "audio without text": (lines(("utt1", "wavs/utt1.wav")), ["id|text"]),
    "language before speaker": (lines(("a.wav", "The boat left.", "EN", "anna")), ["id|speaker_id|language|text"]),
    "numbers": (lines(("a.wav", "7", "3")), ["id|speaker_id|text"]),
    "two texts": (
        lines(("a.wav", "The boat left.", "Nobody saw it go.")),
        ["id|written_text|text", "id|text|speaker_id"],
    ),
    "commands": (
        lines(*((f"u{i} sph2pipe {i}.sph ", "") for i in range(3))),
        ["2 fields", "no list of a known toolkit"],
    ),
    "tones": (lines(("LJ001", "2", "0 0 1 0")), ["id|speaker_id|text"]),
    "phonemes": (lines(("Yes", "{Y EH1 S}")), ["id|text"]),
    "phonemes of a word": (lines(("LJ001", "2", "Y EH1 S")), ["id|speaker_id|text"]),
    "a text and a style": (
        lines(("a.wav", "Nobody saw it go.", "Say it slowly and softly.")),
        ["id|written_text|text", "id|text|speaker_id"],
    ),
    "words and a transcript": (
        lines(
            *((f"{i}.wav", word, "What was said there.") for i, word in enumerate(["yes", "no", "stop", "go", "left"]))
        ),
        ["id|speaker_id|text", "id|text|speaker_id"],
    ),
    "too many": (lines(tuple("abcdefghi")), ["9 fields"]),
}


@pytest.mark.parametrize(("content", "readings"), AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_an_ambiguous_list_is_refused_with_its_readings(read: ReadRows, content: str, readings: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        read.written("train.txt", content)
    assert all(reading in str(caught.value) for reading in readings)


def test_a_field_is_named_by_its_number_or_by_a_header(read: ReadRows) -> None:
    content = AMBIGUOUS["words"][0]
    rows = read.written("t.txt", content, map={"text": "field3", "id": "field1"})
    assert [(row.id, row.text) for row in rows] == [("a.wav", "hello"), ("b.wav", "goodbye")]
    assert [row.text for row in read.written("t.txt", f"file|who|text\n{content}")] == ["hello", "goodbye"]
    with pytest.raises(UsageError, match="has no column 'field9'"):
        read.written("t.txt", content, map={"text": "field9"})


def test_words_of_speakers_are_ambiguous_however_often_they_come(read: ReadRows) -> None:
    rows = [(f"{i}.wav", "anna", word) for i, word in enumerate(["hello", "goodbye", "yes", "no"])]
    with pytest.raises(UsageError, match=r"id\|speaker_id\|text \(as VITS, Piper\) or id\|text\|speaker_id"):
        read.written("t.txt", lines(*rows))


def test_lines_of_odd_spaces_are_texts(read: ReadRows) -> None:
    assert reasons(read.written("t.txt", "\u3000\nHello there.\n\x0b\n")) == ["empty_text", None, "empty_text"]
    with pytest.raises(UsageError, match="1 field a line, which is no list"):
        read.written("t.txt", "a | b\nHello there.\nAnd on.\n")


def test_lines_of_another_number_of_fields_are_bad_rows(read: ReadRows) -> None:
    rows = read.written("t.txt", "x|y|z|w|v\n" + LAYOUTS["StyleTTS2"])
    assert reasons(rows) == ["bad_row", None, None, None]


_WORDS = st.sampled_from(["the", "boat", "left", "at", "dawn", "nobody", "yes", "Hello", "No."])
_TEXT = st.one_of(
    st.lists(_WORDS, min_size=2, max_size=6).map(" ".join), _WORDS, st.sampled_from(["你好世界", "おはよう", "Hi!"])
)
_NAME = st.sampled_from(["anna", "ben", "0", "1", "Speaker One", "胡桃", "p225"])
_COLUMNS = {
    "file": lambda number: st.sampled_from([f"wavs/{number}.wav", f"a/b{number}.flac"]),
    "id": lambda number: st.just(f"utt{number:04}"),
    "speaker": lambda number: _NAME,
    "language": lambda number: st.sampled_from(["EN", "ZH", "ja"]),
    "phones": lambda number: st.sampled_from(["{DH AH0 B}", "{Y EH1 S}"]),
    "seconds": lambda number: st.sampled_from(["3.25", "10.1"]),
    "tones": lambda number: st.sampled_from(["0 0 1 0", "1 2 1"]),
    "text": lambda number: _TEXT,
}


@st.composite
def _lists(draw: st.DrawFn) -> tuple[list[list[str]], int]:
    """Rows of some kinds of columns in any order, and which of the columns is the text."""
    kinds = draw(
        st.permutations(
            ["text", *draw(st.lists(st.sampled_from(sorted(_COLUMNS.keys() - {"text"})), unique=True, max_size=3))]
        )
    )
    rows = draw(st.integers(1, 6))
    return [[draw(_COLUMNS[kind](row)) for kind in kinds] for row in range(rows)], kinds.index("text")


@given(_lists())
@settings(max_examples=600, deadline=None)
def test_no_other_column_is_ever_spoken(made: tuple[list[list[str]], int]) -> None:
    rows, place = made
    if len(rows[0]) == 1:
        return
    try:
        names = name_fields(rows, "|", {}, "t.txt")
    except UsageError:
        return
    assert names[place] == "text"
