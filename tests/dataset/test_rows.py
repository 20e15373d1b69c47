"""Cells to rows: typed failures, defaults, ids, columns."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dataset.support import ReadRows, reasons
from tts_batch.dataset.cells import is_empty
from tts_batch.dataset.columns import COLUMNS
from tts_batch.dataset.languages import LANGUAGES, parse_language
from tts_batch.dataset.spoken_text import has_speech
from tts_batch.errors import RowError, UsageError
from tts_batch.records import Row


def from_dicts(read: ReadRows, *rows: dict[str, Any], **options: Any) -> list[Row]:
    return read.written("t.jsonl", "".join(json.dumps(row) + "\n" for row in rows), **options)


def test_b16_languages_as_people_write_them(read: ReadRows) -> None:
    cells = ["English", "en", "ZH", "zh-CN", " english ", None, "", "Auto", "pt_BR", "zh-Hans-CN", "jpn", "es-419"]
    rows = from_dicts(read, *({"text": "a", "language": cell} for cell in cells))
    expected = ["english", "english", "chinese", "chinese", "english", None, None, None, "portuguese", "chinese"]
    assert [row.language for row in rows] == [*expected, "japanese", "spanish"]
    bad = from_dicts(read, *({"text": "a", "language": cell} for cell in ["Klingon", "sichuan_dialect", "zh-yue", 7]))
    assert reasons(bad) == ["bad_language"] * 4
    assert bad[0].failure and all(name in bad[0].failure.message for name in ("'Klingon'", *LANGUAGES))
    assert bad[1].failure and "eric" in bad[1].failure.message


@given(st.sampled_from(LANGUAGES), st.sampled_from(["", " ", "\t"]), st.sampled_from([str.upper, str.title, str]))
def test_language_names_in_any_case_and_space(name: str, space: str, case: Any) -> None:
    assert parse_language(space + case(name) + space) == name


@given(st.text(max_size=8))
def test_every_other_language_is_a_row_error(value: str) -> None:
    try:
        assert parse_language(value) in {None, *LANGUAGES}
    except RowError as error:
        assert error.reason == "bad_language"


SILENT = ["", "  \t\n", "…", "—", "🙂", "👩‍👩‍👧", "\u200b", "\u3164", None, "?!.", "、。", "\ufeff", "\ufffd", "\x00"]


@pytest.mark.parametrize("text", SILENT, ids=ascii)
def test_b17_text_with_nothing_to_speak(read: ReadRows, text: str | None) -> None:
    assert reasons(from_dicts(read, {"text": text}, {"text": "hello there"})) == ["empty_text", None]


@pytest.mark.parametrize("text", ["7", "２", "no", "好", "สวัสดี", "Ω", "½", "a\n", "\na", "🙂 ok"])
def test_b17_short_text_is_fine_and_unchanged(read: ReadRows, text: str) -> None:
    (row,) = from_dicts(read, {"text": text})
    assert (row.text, row.failure) == (text, None)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": None}, "text is empty: there is nothing to speak."),
        ({"text": "…"}, "text '…' holds no letter or digit: there is nothing to speak."),
        ({"text": ["a"]}, "text is a list: it takes text."),
        ({"text": "a", "speaker": 0.5}, "speaker is a number: it takes text."),
        ({"text": "a", "ref_audio": 5}, "ref_audio is an integer: give a path, bytes or an audio struct."),
        ({"text": "a", "seed": "x" * 9000}, f"seed is '{'x' * 200}…': it takes a whole number"),
    ],
)
def test_messages_speak_of_cells_in_plain_words(read: ReadRows, row: dict[str, Any], message: str) -> None:
    failure = from_dicts(read, row)[0].failure
    assert failure is not None and failure.message.startswith(message)


def test_a_row_without_the_text_key_is_empty(read: ReadRows) -> None:
    assert reasons(from_dicts(read, {"text": "a", "id": "x"}, {"id": "y"})) == [None, "empty_text"]


def test_b02_scripts_and_damage_are_remarked(read: ReadRows) -> None:
    rows = from_dicts(read, *[{"text": "สวัสดี abc 你好 \ufffd"}] * 10, {"text": "5 μm, naïve, Привет, 한국, カナ"})
    assert reasons(rows) == [None] * 11
    assert any("none of the ten languages" in note and "10 rows" in note for note in read.notes)
    assert any("U+FFFD" in note and "10 rows" in note for note in read.notes)


@pytest.mark.parametrize(
    ("seed", "reason"),
    [(0, None), (2**63 - 1, None), ("42", None), (7.0, None), (None, None), ("", None), (float("nan"), None)]
    + [(bad, "bad_seed") for bad in (-1, 2**63, 1.5, "x", True, "1e3", [1], "9" * 50)],
)
def test_seeds(read: ReadRows, seed: Any, reason: str | None) -> None:
    (row,) = from_dicts(read, {"text": "a", "seed": seed})
    assert reasons([row]) == [reason]
    if reason is None:
        assert row.seed == (None if is_empty(seed) else int(seed))


@pytest.mark.parametrize(
    ("cell", "value"),
    [(True, True), ("TRUE", True), ("yes", True), (1, True), (0.0, False), ("f", False), ("0", False), (None, False)],
)
def test_flags(read: ReadRows, cell: Any, value: bool) -> None:
    (row,) = from_dicts(read, {"text": "a", "x_vector_only": cell})
    assert (row.x_vector_only, row.failure) == (value, None)


@pytest.mark.parametrize("cell", ["maybe", 2, [True]])
def test_flags_that_are_none(read: ReadRows, cell: Any) -> None:
    assert reasons(from_dicts(read, {"text": "a", "x_vector_only": cell})) == ["bad_row"]


def test_tasks_in_the_usual_spellings(read: ReadRows) -> None:
    cells = ["base", "CustomVoice", "voice-design", "Voice Clone", "", "singing"]
    rows = from_dicts(read, *({"text": "a", "task": cell} for cell in cells))
    assert [row.task for row in rows[:5]] == ["base", "custom_voice", "voice_design", "base", None]
    assert reasons(rows[4:]) == [None, "wrong_task"]


@pytest.mark.parametrize("value", ["", "  ", None, "a\tb", "x" * 1025, True, [1], "a\u2028b"], ids=ascii)
def test_bad_ids(read: ReadRows, value: Any) -> None:
    rows = from_dicts(read, {"id": value, "text": "a"}, {"id": "ok", "text": "b"})
    assert reasons(rows) == ["bad_id", None]


@pytest.mark.parametrize("value", ["x" * 1024, "../../x", "/etc/x", "a.b.c", "好", 5])
def test_b65_unusual_ids_are_kept(read: ReadRows, value: Any) -> None:
    (row,) = from_dicts(read, {"id": value, "text": "a"})
    assert (row.id, row.failure) == (str(value), None)


def test_b53_equal_ids_name_the_first_row(read: ReadRows) -> None:
    rows = read.written("t.csv", "id,text\nx,one\n" + "".join(f"{i},t\n" for i in range(3000)) + "x,two\n")
    assert reasons(rows) == [None] * 3001 + ["duplicate_id"]
    assert rows[-1].failure and "'x'" in rows[-1].failure.message and "row 1 " in rows[-1].failure.message


def test_derived_ids_do_not_move_when_rows_come_and_go(read: ReadRows) -> None:
    before = from_dicts(read, {"text": "a"}, {"text": "b"}, {"text": "b"}, {"text": "b", "seed": 1})
    after = from_dicts(read, {"text": "new"}, {"text": "b"}, {"text": "x"}, {"text": "a"}, {"text": "b"}, {"text": "b"})
    ids = [row.id for row in before]
    assert len(set(ids)) == 4
    assert [after[3].id, after[1].id, after[4].id] == ids[:3]


def test_derived_ids_are_those_of_any_format(read: ReadRows) -> None:
    (line,) = from_dicts(read, {"text": "a", "seed": 5})
    (cell,) = read.written("t.csv", "text,seed,other\na,5,x\n")
    assert line.id == cell.id


def test_defaults_are_only_for_rows_without(read: ReadRows) -> None:
    rows = from_dicts(
        read,
        {"text": "a"},
        {"text": "b", "speaker": "Ryan", "language": "de", "instruct": "low", "x_vector_only": False},
        {"text": "c", "ref_audio": "a.wav"},
        {"text": "d", "task": "voice_design", "instruct": "an old man"},
        language="English",
        speaker="Uncle Fu",
        instruct="happy",
        x_vector_only=True,
    )
    seen = [(row.language, row.speaker, row.instruct, row.x_vector_only) for row in rows]
    assert seen == [
        ("english", "uncle_fu", "happy", True),
        ("german", "ryan", "low", False),
        ("english", None, None, True),
        ("english", None, "an old man", True),
    ]


def test_a_bad_default_is_a_usage_error(read: ReadRows) -> None:
    with pytest.raises(UsageError, match="--language"):
        from_dicts(read, {"text": "a"}, language="klingon")


def test_b54_near_misses_are_remarked_and_strict_refuses_them(read: ReadRows) -> None:
    table = "text,langauge,mood\na,de,calm\n"
    (row,) = read.written("t.csv", table)
    assert row.extras == {"langauge": "de", "mood": "calm"} and row.language is None
    assert any("did you mean 'language'" in note for note in read.notes)
    with pytest.raises(UsageError, match="unknown column 'langauge'"):
        read.written("t.csv", table, strict=True)
    read.written("t.csv", "id,text\na,b\n", strict=True)


def test_map_names_columns_and_switches_them_off(read: ReadRows) -> None:
    table = "key,text,said,speaker\n1,no,yes,1034\n"
    (row,) = read.written("t.csv", table, map={"text": "said", "id": "key", "speaker": ""})
    assert (row.id, row.text, row.speaker) == ("1", "yes", None)
    assert row.extras == {"text": "no", "speaker": "1034"}
    with pytest.raises(UsageError, match="has no column 'gone'"):
        read.written("t.csv", table, map={"text": "gone"})
    with pytest.raises(UsageError, match="'sound' is not one of"):
        read.written("t.csv", table, map={"sound": "said"})


def test_aliases_only_where_unambiguous(read: ReadRows) -> None:
    (row,) = read.written("t.csv", "utt,Sentence,lang,prompt_wav,Prompt Text,instructions\nu,Hi,fr,a.wav,There,soft\n")
    assert (row.id, row.text, row.language, row.ref_text, row.instruct) == ("u", "Hi", "french", "There", "soft")
    (row,) = read.written("t.csv", "text,normalized_text\nA 1,a one\n")
    assert row.text == "A 1" and row.extras == {"normalized_text": "a one"}
    with pytest.raises(UsageError, match="could each be the text"):
        read.written("t.csv", "sentence,transcript\na,b\n")
    with pytest.raises(UsageError, match="no column 'text'"):
        read.written("t.csv", "txet,b\na,b\n")


@pytest.mark.parametrize(
    ("name", "cell", "meaning"),
    [
        ("voice", "Vivian", "speaker"),
        ("voice", "v/a.wav", "ref_audio"),
        ("voice", "alloy", None),
        ("speaker_id", "ryan", "speaker"),
        ("speaker_id", 3, None),
    ],
)
def test_voice_and_speaker_id_are_read_by_content(read: ReadRows, name: str, cell: Any, meaning: str | None) -> None:
    rows = from_dicts(read, {"text": "a", name: None}, {"text": "b", name: cell})
    row = rows[1]
    assert (row.speaker is not None) == (meaning == "speaker")
    assert (row.ref_audio is not None) == (meaning == "ref_audio")
    assert (name in row.extras) == (meaning is None)
    assert any(f"column '{name}'" in note for note in read.notes)


def test_sampling_columns_are_noted(read: ReadRows) -> None:
    (row,) = read.written("t.csv", "text,temperature\na,0.5\n")
    assert row.extras == {"temperature": "0.5"} and any("sampling is set for the whole run" in n for n in read.notes)


def test_a_failed_row_keeps_what_could_be_read(read: ReadRows) -> None:
    (row,) = from_dicts(read, {"id": "x", "text": "a", "language": "klingon", "seed": 5, "mood": "calm"})
    assert (row.id, row.text, row.seed, row.extras, row.language) == ("x", "a", 5, {"mood": "calm"}, None)


def test_a_text_without_speech_is_kept_to_be_shown(read: ReadRows) -> None:
    assert [row.text for row in from_dicts(read, {"text": "🙂"}, {"text": None})] == ["🙂", ""]


def test_reading_twice_gives_the_same(read: ReadRows) -> None:
    pq.write_table(pa.table({"text": ["a", "a", "b"], "seed": [1, None, 2]}), read.folder / "t.parquet")
    assert [row.id for row in read("t.parquet")] == [row.id for row in read("t.parquet")]


def test_twelve_bad_rows_of_different_kinds_among_a_hundred(read: ReadRows) -> None:
    bad: dict[int, tuple[dict[str, Any], str]] = {
        3: ({"id": "r0"}, "duplicate_id"),
        9: ({"id": " "}, "bad_id"),
        15: ({"text": " "}, "empty_text"),
        22: ({"text": "🙂"}, "empty_text"),
        31: ({"text": "a\ud800"}, "bad_text"),
        40: ({"language": "xx"}, "bad_language"),
        48: ({"seed": -5}, "bad_seed"),
        57: ({"speaker": 1.5}, "bad_speaker"),
        66: ({"task": "sing"}, "wrong_task"),
        75: ({"ref_audio": "https://host/a.wav"}, "url_refused"),
        84: ({"ref_audio": {"array": [0.0], "sampling_rate": None}}, "ref_unreadable"),
        99: ({"non_streaming": "perhaps"}, "bad_row"),
    }
    rows = from_dicts(read, *({"id": f"r{i}", "text": "Fine."} | bad.get(i, ({}, ""))[0] for i in range(100)))
    assert {i: reason for i, reason in enumerate(reasons(rows)) if reason} == {i: why for i, (_, why) in bad.items()}
    assert all(row.failure.message for row in rows if row.failure)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=()), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["bytes", "path", "array", "x"]), inner)
    ),
    max_leaves=5,
)


@given(row=st.dictionaries(st.sampled_from([*COLUMNS, "extra"]), _JSON))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
def test_no_cell_ends_the_reading(read: ReadRows, row: dict[str, Any]) -> None:
    first, _ = from_dicts(read, {"text": "a"} | row, {"text": "b"})
    message = first.failure.message if first.failure else ""
    shown = [first.id, first.text, first.speaker, first.instruct, first.ref_text, message, first.extras.get("extra")]
    assert all(isinstance(part, str) and part.encode() is not None for part in shown if isinstance(part, str))


@given(body=st.binary(max_size=60), suffix=st.sampled_from(["csv", "tsv", "txt", "jsonl"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_no_bytes_end_the_reading(read: ReadRows, body: bytes, suffix: str) -> None:
    head = {"csv": b"id,text\n", "tsv": b"id\ttext\n", "txt": b"id|text\n", "jsonl": b'{"id": "0", "text": "a"}\n'}
    for row in read.written(f"t.{suffix}", head[suffix] + body):
        assert row.failure or row.text


@given(st.text())
def test_has_speech_agrees_with_itself_on_joined_texts(text: str) -> None:
    assert has_speech(text + "a") and has_speech(text) == any(has_speech(char) for char in text)


_PIECES = st.sampled_from(
    [
        *(b"text", b"id", b"a.wav", b"Hello there.", b"|", b"\t", b";", b",", b"\n", b"\r\n", b'"', b'""', b"sep=;\n"),
        *(b"\xff\xfe", b"\xef\xbb\xbf", b"\x00", b"\xe9", b"\xe3\x80\x80", b"{", b"[", b"}", b":", b" ", b"0"),
    ]
)


@given(pieces=st.lists(_PIECES, max_size=14), suffix=st.sampled_from(["csv", "tsv", "txt", "list", "jsonl", "json"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=600, deadline=None)
def test_any_file_is_read_or_refused_by_a_usage_error(read: ReadRows, pieces: list[bytes], suffix: str) -> None:
    try:
        rows = read.written(f"t.{suffix}", b"".join(pieces))
    except UsageError as error:
        assert str(error).isprintable()
    else:
        assert all(row.failure.message.isprintable() if row.failure else row.text for row in rows)
