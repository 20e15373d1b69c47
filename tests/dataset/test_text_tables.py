"""CSV, TSV, pipe lists and JSON lines, as people really write them."""

from __future__ import annotations

import errno
import io
import json
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dataset.support import ReadRows, reasons
from tts_batch.dataset.files import TableFile
from tts_batch.errors import UsageError


def test_b42_csv_cells_stay_text(read: ReadRows) -> None:
    rows = read.written("t.csv", "id,text\n0007,a\n1e5,b\n1.0,c\n")
    assert [row.id for row in rows] == ["0007", "1e5", "1.0"]


def test_csv_with_bom_crlf_quotes_and_line_ends_in_texts(read: ReadRows) -> None:
    rows = read.written("t.csv", '\ufeffid,text,mood\r\na,"One, ""two""\r\nthree",calm\r\n\r\nb,Four,\r\n')
    assert [(row.id, row.text, row.source) for row in rows] == [
        ("a", 'One, "two"\r\nthree', "t.csv:2"),
        ("b", "Four", "t.csv:5"),
    ]
    assert rows[0].extras == {"mood": "calm"}


def test_csv_lines_that_are_broken_are_one_row_each(read: ReadRows) -> None:
    table = b'id,text\na,one\nb\nc,two,2\nd,caf\xe9\ne,"x"y\nf,last\ng,"never closed\n'
    rows = read.written("t.csv", table)
    assert reasons(rows) == [None, "bad_row", "bad_row", "bad_row", "bad_row", None, "bad_row"]
    messages = [row.failure.message for row in rows if row.failure]
    assert "line 3 has 1 field where 2 are expected" in messages[0]
    assert "line 5 is not UTF-8" in messages[2]
    assert "line 8" in messages[4]


def test_b43_json_lines_end_at_newlines_only(read: ReadRows) -> None:
    lines = [
        b'\xef\xbb\xbf{"id": "a", "text": "one"}\r\n',
        b"\n",
        '{"id": "b", "text": "two\u2028lines"}\n'.encode(),
        b'{"id": "c", "text": "bad \xff byte"}\n',
        b'{"id": "d", "text": \n',
        b'["e"]\n',
        b'{"id": "f", "text": "last"}',
    ]
    rows = read.written("t.jsonl", b"".join(lines))
    assert reasons(rows) == [None, None, "bad_row", "bad_row", "bad_row", None]
    assert rows[1].text == "two\u2028lines"
    assert rows[4].failure and rows[4].failure.message == "line 6 is not a JSON object: it is a list"
    assert [row.source for row in rows] == [f"t.jsonl:{n}" for n in (1, 3, 4, 5, 6, 7)]
    assert all(f"line {n}" in row.failure.message for n, row in zip((4, 5, 6), rows[2:5], strict=True) if row.failure)


def test_json_keys_may_come_late(read: ReadRows) -> None:
    lines = [{"text": "a"}] * 1500 + [{"text": "b", "Seed": 5, "mood": "calm"}, {"text": "c"}]
    rows = read.written("t.jsonl", "\n".join(map(json.dumps, lines)))
    assert (rows[1500].seed, rows[1500].extras, rows[1501].seed) == (5, {"mood": "calm"}, None)


class FailingFile(io.RawIOBase):
    """A file on a share that goes away after some bytes."""

    def __init__(self, content: bytes, good_bytes: int) -> None:
        self._content, self._good_bytes = io.BytesIO(content), good_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._content.tell() >= self._good_bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._content.readinto(buffer)


@pytest.mark.parametrize("good_bytes", [0, 20_000])
@pytest.mark.parametrize(
    ("name", "header", "line"),
    [
        ("t.csv", "text\n", "a\n"),
        ("t.tsv", "text\n", "a\n"),
        ("t.jsonl", "", '{"text": "a"}\n'),
        ("t.txt", "", "a.wav|b\n"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    read: ReadRows, monkeypatch: pytest.MonkeyPatch, name: str, header: str, line: str, good_bytes: int
) -> None:
    content = (header + line * 20_000).encode()
    (read.folder / name).write_bytes(content)
    monkeypatch.setattr(TableFile, "open", lambda file: io.BufferedReader(FailingFile(content, good_bytes)))
    with pytest.raises(UsageError, match=rf"^{name} cannot be read: Input/output error\.$"):
        read(name)


def test_half_a_surrogate_pair_fails_where_it_is_spoken(read: ReadRows) -> None:
    rows = read.written(
        "t.jsonl",
        '{"text": "a\\ud800"}\n{"text": "b", "note\\ud800": "\\ud800"}\n{"text": "\\ud83d\\ude42c"}\n',
    )
    assert reasons(rows) == ["bad_text", None, None]
    assert rows[1].extras == {"note\ufffd": "\ufffd"}
    assert rows[2].text == "🙂c"


def test_b44_a_stray_quotation_mark_swallows_nothing(read: ReadRows) -> None:
    pipe = read.written("t.txt", 'u1|"Wait, he said\nu2|plain\nu3|it cost 5" more\n')
    tabs = read.written("t.tsv", 'id\ttext\nu1\t"Wait, he said\nu2\tplain\nu3\tit cost 5" more\n')
    texts = ['"Wait, he said', "plain", 'it cost 5" more']
    assert [row.text for row in pipe] == [row.text for row in tabs] == texts


def test_b45_ljspeech_lists_have_two_or_three_columns(read: ReadRows) -> None:
    two = read.written("metadata.csv", "LJ001|In 1999, he came.\nLJ002.wav|Two.\n\n\n")
    three = read.written("three.csv", "LJ001|In 1999.|In nineteen ninety-nine.\nLJ002|No.\nLJ003|Mr. X|Mister X\n")
    assert [(row.id, row.text) for row in two] == [("LJ001", "In 1999, he came."), ("LJ002.wav", "Two.")]
    assert [row.text for row in three] == ["In nineteen ninety-nine.", "", "Mister X"]
    assert reasons(three) == [None, "bad_row", None]
    assert three[1].failure and "line 2" in three[1].failure.message
    assert three[0].extras == {"written_text": "In 1999."}


def test_pipe_list_with_a_header(read: ReadRows) -> None:
    rows = read.written("t.txt", "id|text|speaker\na|Hello|Vivian\n")
    assert (rows[0].id, rows[0].text, rows[0].speaker) == ("a", "Hello", "vivian")


def test_seed_tts_list(read: ReadRows) -> None:
    rows = read.written("meta.lst", "u1|What is said.|prompt/a.wav|What to say.\n")
    assert (rows[0].ref_text, rows[0].text) == ("What is said.", "What to say.")
    assert rows[0].ref_audio and rows[0].ref_audio.path == str(read.folder / "prompt/a.wav")


def test_two_columns_of_one_name_are_refused(read: ReadRows) -> None:
    with pytest.raises(UsageError, match="two columns named 'text'"):
        read.written("t.csv", "text,text\na,b\n")


_LINE = st.text(st.characters(exclude_characters="\t\r\n|", exclude_categories=("Cs",)), min_size=1).map(
    lambda text: f"x{text}y"
)


@given(texts=st.lists(_LINE, min_size=1, max_size=5))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_texts_come_through_every_format_unchanged(read: ReadRows, texts: list[str]) -> None:
    import csv
    import io

    sheet = io.StringIO(newline="")
    csv.writer(sheet).writerows([["text"], *([text] for text in texts)])
    assert [row.text for row in read.written("t.csv", sheet.getvalue())] == texts
    assert [row.text for row in read.written("t.tsv", "text\n" + "".join(f"{text}\n" for text in texts))] == texts
    pipe = "".join(f"{i}|{text}\n" for i, text in enumerate(texts))
    assert [row.text for row in read.written("t.txt", pipe)] == texts
    for ascii_only in (True, False):
        lines = "".join(json.dumps({"text": text}, ensure_ascii=ascii_only) + "\n" for text in texts)
        assert [row.text for row in read.written("t.jsonl", lines)] == texts
