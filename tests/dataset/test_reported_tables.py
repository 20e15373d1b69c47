"""Tables that users reported, as small files: each is read right, and said how."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dataset.support import ReadRows, reasons

TABLES = Path(__file__).parents[1] / "data/tables"
BOAT, NOBODY, PIER = "The boat left at dawn.", "Nobody saw it go.", "It was cold on the pier."
CAFE = "The café closed at dawn."

# file: (texts, what the report says)
READ = {
    "styletts2.txt": (
        [BOAT, NOBODY, PIER],
        "list, UTF-8, separated by '|', without a header; id ← field1, text ← field2",
    ),
    "gpt_sovits.list": ([BOAT, NOBODY], "without a header; id ← field1, text ← field4, language ← field3"),
    "gpt_sovits.txt": ([BOAT, NOBODY], "without a header; id ← field1, text ← field4, language ← field3"),
    "one_empty_column.csv": ([BOAT, NOBODY], "CSV, UTF-8, separated by commas, with a header; id, text, speaker"),
    "two_empty_columns.csv": ([BOAT, NOBODY], "CSV, UTF-8, separated by commas, with a header; id, text, speaker"),
    "semicolon.csv": ([CAFE, NOBODY], "CSV, UTF-8, separated by semicolons, with a header"),
    "sep.csv": ([CAFE, NOBODY], "CSV, UTF-8, separated by semicolons, with a header"),
    "utf16.csv": ([CAFE, NOBODY], "CSV, UTF-16, separated by commas, with a header"),
    "utf16_tabs.txt": ([CAFE, NOBODY], "CSV, UTF-16, separated by tabs, with a header"),
}


@pytest.mark.parametrize(("name", "texts", "report"), [(name, *expected) for name, expected in READ.items()])
def test_it_is_read_right(read: ReadRows, name: str, texts: list[str], report: str) -> None:
    rows = read.written(name, (TABLES / name).read_bytes())
    assert reasons(rows) == [None] * len(texts)
    assert [row.text for row in rows] == texts
    assert report in read.reports[0]


def test_windows_1252_is_named_or_given(read: ReadRows) -> None:
    data = (TABLES / "cp1252.csv").read_bytes()
    rows = read.written("cp1252.csv", data)
    assert reasons(rows) == ["bad_row", None]
    assert rows[0].failure and "give --encoding" in rows[0].failure.message
    assert [row.text for row in read.written("cp1252.csv", data, encoding="cp1252")] == [CAFE, NOBODY]


@pytest.mark.parametrize(
    ("name", "note"),
    [
        (
            "ssml.jsonl",
            "text holds markup (SSML, HTML), whose tags are spoken and not obeyed (ssml.jsonl:2: '<speak>')",
        ),
        (
            "invisible.jsonl",
            "text holds invisible characters, which change its tokens and its sound (3 rows, the first",
        ),
    ],
)
def test_texts_are_left_as_they_are_and_noted(read: ReadRows, name: str, note: str) -> None:
    rows = read.written(name, (TABLES / name).read_bytes())
    assert reasons(rows) == [None] * len(rows)
    assert read.notes[0].startswith(note)
