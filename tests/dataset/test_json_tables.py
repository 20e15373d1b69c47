"""JSON arrays and objects over many lines, read one by one; JSON lines are in test_text_tables.py."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dataset.support import ReadRows, reasons
from tts_batch.errors import UsageError

ROWS = [{"id": f"r{i}", "text": f"Line {i}, [with] {{signs}}.", "note": [i, {"a": None}]} for i in range(5)]

WRITTEN = {
    "array": json.dumps(ROWS),
    "array on many lines": json.dumps(ROWS, indent=2),
    "an item a line": "[\n" + ",\n".join(map(json.dumps, ROWS)) + "\n]\n",
    "objects on many lines": "\n".join(json.dumps(row, indent=1) for row in ROWS),
    "array with a mark": "\ufeff" + json.dumps(ROWS, ensure_ascii=False),
}


@pytest.mark.parametrize("name", ["t.json", "t.jsonl", "t.ndjson"])
@pytest.mark.parametrize("content", WRITTEN.values(), ids=WRITTEN)
def test_objects_are_rows_however_they_are_laid_out(read: ReadRows, content: str, name: str) -> None:
    rows = read.written(name, content)
    assert [(row.id, row.text, row.extras["note"]) for row in rows] == [tuple(row.values()) for row in ROWS]
    assert [row.source for row in rows] == [f"{name}:{number}" for number in range(1, 6)]
    assert read.reports == [f"{name}: JSON, UTF-8; id, text"]


def test_json_lines_in_a_text_file_are_not_spoken(read: ReadRows) -> None:
    content = "".join(json.dumps(row) + "\n" for row in ROWS)
    assert [row.text for row in read.written("t.txt", content)] == [row["text"] for row in ROWS]


def test_an_item_that_is_no_object_is_one_bad_row(read: ReadRows) -> None:
    rows = read.written("t.json", b'[{"text": "a"}, 7, null, [{"text": "b"}], {"text": "caf\xe9"}, {"text": "c"}]')
    assert reasons(rows) == [None, "bad_row", "bad_row", "bad_row", "bad_row", None]
    messages = [row.failure.message for row in rows if row.failure]
    assert messages[0] == "item 2 is not a JSON object: it is an integer"
    assert messages[-1].startswith("item 5 is not UTF-8: give --encoding")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('["Hello.", "Bye."]', "holds no JSON objects: item 1 is not a JSON object: it is text"),
        ('{"text": "a"},\n{"text": "b"},\n', "holds no JSON objects: line 1 is not a JSON object: Extra data"),
        ('{"text": ["a", "b"]', "holds no JSON objects"),
        ('{"data": [{"text": "a"}]}', "has no column 'text'; it has data"),
        ('[{"text": "a"}, {"text": ', "is damaged after item 1"),
        ('[{"text": "a"}, {"text": "b"}', None),
        ("[" * 100_000, "is damaged after item 0: maximum recursion depth"),
    ],
)
def test_what_is_no_list_of_objects_is_said(read: ReadRows, content: str, words: str | None) -> None:
    if words is None:  # only the closing bracket is missing
        assert reasons(read.written("t.json", content)) == [None, None]
        return
    with pytest.raises(UsageError, match=words):
        read.written("t.json", content)


_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    rows=st.lists(st.dictionaries(st.sampled_from(["a", "b"]), _VALUES), min_size=1, max_size=5),
    indent=st.sampled_from([None, 0, 3]),
    chunk=st.integers(1, 40),
)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_where_the_file_is_cut_into_chunks_changes_nothing(
    read: ReadRows, monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], indent: int | None, chunk: int
) -> None:
    monkeypatch.setattr("tts_batch.dataset.json_tables._CHUNK_CHARS", chunk)
    content = json.dumps([{"text": "x", **row} for row in rows], indent=indent, ensure_ascii=False)
    assert len(read.written("t.json", content.encode("utf-8", "surrogatepass"))) == len(rows)
