"""Ids are remembered one for one, whatever they are, and in few bytes."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tts_batch.dataset import ids
from tts_batch.dataset.ids import IdRegister
from tts_batch.dataset.notes import Notes
from tts_batch.errors import RowError


@given(st.lists(st.sampled_from("abcdefgh") | st.text(max_size=3), max_size=40))
def test_every_id_is_that_of_its_first_row(given_ids: list[str]) -> None:
    register = IdRegister()
    for row, row_id in enumerate(given_ids):
        first = given_ids.index(row_id)
        if first == row:
            register.claim(row_id, row)
            register.claim(row_id, row)  # the same row may ask again
        else:
            with pytest.raises(RowError, match=f"already that of row {first + 1} of the input") as caught:
                register.claim(row_id, row)
            assert caught.value.reason == "duplicate_id"


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("\ufeffa1", "a1"),
        (" a1\n", "a1"),
        (bytes(15) + b"\1", "00000000-0000-0000-0000-000000000001"),
        (b"abcdefgh01234567", "abcdefgh01234567"),
        (b"ab\0\0", "ab"),
    ],
)
def test_a_given_id_is_its_text(cell: object, expected: str) -> None:
    notes = Notes()
    assert ids.parse_id(cell, notes, "t:1") == expected and not notes.sentences()


@pytest.mark.parametrize("cell", [None, "", " ", float("nan")])
def test_an_id_that_says_nothing_is_empty(cell: object) -> None:
    with pytest.raises(RowError, match="id is empty"):
        ids.parse_id(cell, Notes(), "t:1")


@pytest.mark.parametrize("cell", ["1.23457E+11", "1,2E+08"])
def test_numbers_that_a_spreadsheet_rounded_are_noted(cell: str) -> None:
    notes = Notes()
    assert ids.parse_id(cell, notes, "t:1") == cell
    assert notes.sentences() == [f"id looks like a number that a spreadsheet has rounded (t:1: {cell!r})"]


def test_equal_contents_are_counted() -> None:
    register = IdRegister()
    contents = [f"text {n % 700}" for n in range(2_100)]
    derived = [register.derive(content) for content in contents]
    assert len(set(derived)) == 2_100
    assert derived[700] == f"{derived[0]}-2"
    assert derived[1_400] == f"{derived[0]}-3"


def test_keys_that_want_the_same_place_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ids, "_digest", lambda text: bytes(6) + int(text).to_bytes(2, "little"))
    register = IdRegister()
    for row in range(3_000):  # 0 too, which would be an empty place
        register.claim(str(row), row)
    for row in (0, 2, 2_999):
        with pytest.raises(RowError, match=f"row {row + 1} "):
            register.claim(str(row), 3_000)


def test_a_row_costs_few_bytes() -> None:
    register = IdRegister()
    tracemalloc.start()
    for row in range(80_000):
        register.claim(f"an-id-of-some-length-{row}", row)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 50 * 80_000
