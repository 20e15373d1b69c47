"""Tables as spreadsheets export them: any separator, encoding and quoting, wider and longer than their data."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fsspec import AbstractFileSystem, register_implementation

from tests.dataset.support import ReadRows, reasons
from tts_batch.dataset.audio import load_reference
from tts_batch.dataset.files import find_tables
from tts_batch.errors import RowError, UsageError

ROWS = [["1", "Grüße, „alle“; bis morgen", "ryan"], ["2", 'He said "go"\tand left.', "vivian"]]
PLAIN = [["1", "Schöne Grüße aus Köln.", "ryan"], ["2", "Nobody saw it go.", "vivian"]]


def sheet(rows: Sequence[Sequence[str]], separator: str, *, quoting: int = csv.QUOTE_MINIMAL, end: str = "\r\n") -> str:
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=separator, quoting=quoting, lineterminator=end).writerows(rows)  # type: ignore[arg-type]
    return out.getvalue()


@pytest.mark.parametrize("width", [0, 2], ids=["", "empty columns"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL], ids=["", "all quoted"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize(("name", "separator"), [("t.csv", ","), ("t.csv", ";"), ("t.csv", "\t"), ("t.txt", "\t")])
def test_exports_are_read_right(
    read: ReadRows, name: str, separator: str, encoding: str, quoting: int, width: int
) -> None:
    has_sign = separator != "\t" or quoting == csv.QUOTE_ALL or encoding.startswith("utf-16")
    rows = ROWS if has_sign else PLAIN  # tabs without a sign that fields are quoted know no quoting
    table = [["id", "text", "speaker"], *rows]
    content = sheet([[*row, *[""] * width] for row in [*table, ["", "", ""], ["", "", ""]]], separator, quoting=quoting)
    data = content.encode(encoding)
    found = read.written(name, b"\xfe\xff" + data if encoding == "utf-16-be" else data)
    assert reasons(found) == [None, None]
    assert [[row.id, row.text, row.speaker] for row in found] == rows
    assert not read.notes and not found[0].extras


@pytest.mark.parametrize("first", ["sep=;", '"sep=;"', "SEP=;".lower()])
def test_excels_own_line_is_no_header(read: ReadRows, first: str) -> None:
    rows = read.written("t.csv", f"{first}\r\n" + sheet([["id", "text", "speaker"], *ROWS], ";"))
    assert [row.text for row in rows] == [row[1] for row in ROWS]
    assert [row.source for row in rows] == ["t.csv:3", "t.csv:4"]
    assert "separated by semicolons" in read.reports[0]


@pytest.mark.parametrize("encoding", ["cp1252", "mac_roman", "shift_jis", "gb18030", "utf-16-le"])
def test_an_encoding_without_a_mark_is_given(read: ReadRows, encoding: str) -> None:
    text = {"shift_jis": "おはようございます。", "gb18030": "今天天气很好。"}.get(encoding, "Schöne Grüße")
    data = sheet([["id", "text"], ["a", text]], ";").encode(encoding)
    (row,) = read.written("t.csv", data, encoding=encoding)
    assert row.text == text and encoding in read.reports[0]
    (row,) = read.written("t.csv", ("\ufeff" + data.decode(encoding)).encode(), encoding=encoding)  # a mark is certain
    assert row.text == text
    assert [
        row.text for row in read.written("t.jsonl", f'{{"text": "{text}"}}\n'.encode(encoding), encoding=encoding)
    ] == [text]


def test_another_encoding_is_bad_rows_that_say_what_to_do(read: ReadRows) -> None:
    rows = read.written("t.csv", "id;text\na;Grüße\nb;Fine.\n".encode("cp1252"))
    assert reasons(rows) == ["bad_row", None]
    assert rows[0].failure and "line 2 is not UTF-8: give --encoding" in rows[0].failure.message
    with pytest.raises(UsageError, match="header is not UTF-8: give --encoding"):
        read.written("t.csv", "id;text;Länge\na;b;c\n".encode("cp1252"))
    bad = read.written("t.csv", b"id;text\na;b\x81c\n", encoding="cp1252")
    assert bad[0].failure and "line 2 is not cp1252" in bad[0].failure.message


@pytest.mark.parametrize("encoding", ["base64", "utf-99", "rot13", "\0"])
def test_what_is_no_encoding_is_a_usage_error(read: ReadRows, encoding: str) -> None:
    with pytest.raises(UsageError, match="is not an encoding"):
        read.written("t.csv", "text\na\n", encoding=encoding)


@pytest.mark.parametrize("order", ["le", "be"])
def test_utf_16_without_a_mark_is_named(read: ReadRows, order: str) -> None:
    with pytest.raises(UsageError, match=f"give --encoding utf-16-{order}"):
        read.written("t.csv", "id;text\n".encode(f"utf-16-{order}"))


@pytest.mark.parametrize(
    ("data", "words"), [(b"PK\x03\x04xl/workbook", "export the sheet as CSV"), (b"PAR1\x15", "call it .parquet")]
)
def test_what_is_no_text_is_named(read: ReadRows, data: bytes, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read.written("t.csv", data)


def test_half_a_file_of_utf_16_is_a_usage_error(read: ReadRows) -> None:
    with pytest.raises(UsageError, match="is not UTF-16"):
        read.written("t.csv", "id,text\na,b\n".encode("utf-16")[:-1])


def test_messages_hold_no_control_characters(read: ReadRows) -> None:
    for data in (b"na\x00me,\x1b[31mred\na,b\n", b"\xff\xfe\x00\xd8a\x00\n\x00"):
        with pytest.raises(UsageError) as caught:
            read.written("t.csv", data)
        assert str(caught.value).isprintable()


def test_a_filled_column_without_a_name_is_left_out_and_noted(read: ReadRows) -> None:
    (row,) = read.written("t.csv", ",text,\n0,Hello,\n")
    assert row.text == "Hello" and row.extras == {}
    assert read.notes == ["t.csv: column 1 has no name and is left out"]
    (row,) = read.written("t.tsv", "\ttext\n0\tHello\n")
    assert row.text == "Hello" and "column 1" in read.notes[0]


def test_rows_may_be_wider_than_the_header_by_empty_cells(read: ReadRows) -> None:
    rows = read.written("t.csv", "id,text\na,one,,\nb,two,,3\n,,,,\n")
    assert reasons(rows) == [None, "bad_row"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("field", ['"' + '""' * 300_000, '"' * 600_001, '""' * 300_000 + "x"])
def test_long_quotes_are_read_in_linear_time(read: ReadRows, field: str) -> None:
    (row,) = read.written("t.tsv", f"id\ttext\na\tx{field}\n")
    assert row.text == f"x{field}"
    assert len(read.written("t.tsv", f"id\ttext\na\t{field}\n")) == 1


def test_quotes_of_tab_separated_files(read: ReadRows) -> None:
    rows = read.written("t.tsv", 'id\ttext\na\t"He said ""go"", then left."\nb\t"Wait", he said\nc\t"Wait"\n')
    assert [row.text for row in rows] == ['He said "go", then left.', '"Wait", he said', '"Wait"']


@pytest.mark.parametrize(
    ("name", "content", "report"),
    [
        ("t.csv", "path;Sentence\na;Hello\n", "CSV, UTF-8, separated by semicolons, with a header; text ← Sentence"),
        ("t.tsv", "utt\ttext\na\tHello\n", "TSV, UTF-8, separated by tabs, with a header; id ← utt, text"),
        ("t.txt", "Hello.\n", "lines, UTF-8, without a header; text ← line"),
        ("t.jsonl", '{"input": "Hello", "lang": "en"}\n', "JSON lines, UTF-8; text ← input, language ← lang"),
    ],
)
def test_how_a_table_was_read_is_one_line(read: ReadRows, name: str, content: str, report: str) -> None:
    read.written(name, content)
    assert read.reports == [f"{name}: {report}"]


def test_a_name_of_a_column_is_shown_without_control_characters(read: ReadRows) -> None:
    read.written("t.csv", "id\u2028,\x1b[31mtext\na,Hello\n", map={"text": "\x1b[31mtext"})
    assert read.reports[0].isprintable() and r"text ← \x1b[31mtext" in read.reports[0]


def test_tables_that_are_read_alike_share_a_line(read: ReadRows) -> None:
    for name in ("a.csv", "b.csv", "c.tsv"):
        (read.folder / name).write_text("text\nHello\n")
    read("a.csv", "b.csv", "c.tsv")
    assert [report.partition(":")[0] for report in read.reports] == ["a.csv and 1 more", "c.tsv"]


def test_a_mapped_name_finds_the_separator(read: ReadRows) -> None:
    (row,) = read.written("t.csv", "Nr;Satz\n1;Hallo, du\n", map={"text": "Satz"})
    assert row.text == "Hallo, du"
    with pytest.raises(UsageError, match=r"has no column 'text'; it has Nr, Satz"):
        read.written("t.csv", "Nr;Satz\n1;Hallo\n")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("T.csv", "Near it is .*t.csv"),
        ("t.tsv", "Near it is .*t.csv"),
        ("A text to be spoken.", "a .txt file with one a line"),
        ("sheet.xlsx", "Export the sheet as CSV"),
        ("\x1b[31mred.csv", r"\\x1b\[31mred"),
    ],
)
def test_a_table_that_is_not_there_says_what_to_do(read: ReadRows, spec: str, words: str) -> None:
    for name in ("t.csv", "sheet.xlsx"):
        (read.folder / name).write_text("text\nHello\n")
    with pytest.raises(UsageError, match=words) as caught:
        read(spec)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("spec", ["", " ", "\t"])
def test_an_empty_name_is_not_the_working_folder(tmp_path: Path, spec: str) -> None:
    with pytest.raises(UsageError, match="name of the table is empty"):
        find_tables((spec,))


def test_pipes_are_to_be_saved(read: ReadRows, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(read.folder / "t.csv")
    for spec in (str(read.folder / "t.csv"), "-", "/dev/null"):
        with pytest.raises(UsageError, match="is no file: a table is read several times, so save it"):
            find_tables((spec,))


def test_a_link_to_nothing_in_a_folder_is_named(read: ReadRows) -> None:
    (read.folder / "d").mkdir()
    (read.folder / "d/a.csv").write_text("text\nHello\n")
    (read.folder / "d/b.csv").symlink_to("/nowhere")
    with pytest.raises(UsageError, match=r"cannot be read: No such file or directory \(.*b\.csv\)"):
        read("d")


class Broken(AbstractFileSystem):
    """A remote file system whose client raises errors of its own, from a chosen call on."""

    protocol = "broken"
    fails_at = "info"

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        self._fail("info")
        return {"name": path, "size": 100, "type": "file"}

    def _open(self, path: str, *_: Any, **__: Any) -> Any:
        self._fail("open")
        file = io.BytesIO(b"text\nHello\n")
        file.read = lambda *_: self._fail("read")  # type: ignore[method-assign]
        return file

    def _fail(self, call: str) -> Any:
        if call == self.fails_at:
            raise KeyError("no credentials\x1b[31m")


@pytest.mark.parametrize("suffix", ["csv", "txt", "jsonl", "parquet", "arrow"])
@pytest.mark.parametrize("call", ["info", "open", "read"])
def test_any_error_of_a_remote_file_system_is_a_usage_error(
    read: ReadRows, monkeypatch: pytest.MonkeyPatch, suffix: str, call: str
) -> None:
    register_implementation("broken", Broken, clobber=True)
    monkeypatch.setattr(Broken, "fails_at", call)
    with pytest.raises(UsageError, match=rf"t\.{suffix} cannot be read") as caught:
        read(f"broken://x/t.{suffix}")
    assert str(caught.value).isprintable()


def test_names_of_files_and_cells_reach_no_terminal_as_they_are(read: ReadRows) -> None:
    (read.folder / "\x1b[31mred.csv").write_text("text,ref_audio\nHello,\x1b[31ma.wav\n")
    (row,) = read("\x1b[31mred.csv")
    assert row.source.isprintable() and all(report.isprintable() for report in read.reports)
    assert row.ref_audio is not None
    for content in (None, b"PK\x03\x04", b"\0" * 400):
        if content is not None:
            (read.folder / "\x1b[31ma.wav").write_bytes(content)
        with pytest.raises(RowError) as caught:
            load_reference(row.ref_audio)
        assert caught.value.message.isprintable()
