"""Names of clips: safe, stable, distinct; and what is in the files."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_batch.store.clips import clip_name, clip_path, encode_codes, encode_wav

SAFE = re.compile(r"[a-z0-9_-]([a-z0-9_.-]*[a-z0-9_-])?")


def test_plain_ids_are_their_own_names() -> None:
    assert [clip_name(name) for name in ("row-1", "a_b.c", "0007", "-x")] == ["row-1", "a_b.c", "0007", "-x"]
    assert clip_path("row-1") == "5c/row-1.wav" or clip_path("row-1").endswith("/row-1.wav")


@pytest.mark.parametrize(
    "row_id",
    [
        "",
        ".",
        "..",
        ".hidden",
        "a/b",
        "../../etc/passwd",
        "a\\b",
        "con",
        "nul.x",
        "x.",
        "LJ001-0001",
        "naïve",
        "x" * 300,
    ],
)
def test_other_ids_get_a_readable_remainder_and_a_hash(row_id: str) -> None:
    assert re.fullmatch(r"[a-z0-9_-]{1,60}__[0-9a-f]{16}", clip_name(row_id))


def test_an_id_cannot_take_the_name_of_another() -> None:
    taken = clip_name("A")
    assert clip_name(taken) != taken


@settings(deadline=None)
@given(st.lists(st.text(max_size=150), unique=True, max_size=30))
def test_names_are_safe_and_distinct_even_without_case(row_ids: list[str]) -> None:
    names = [clip_name(row_id) for row_id in row_ids]
    assert all(SAFE.fullmatch(name) and len(name) < 120 for name in names)
    assert len({name.casefold() for name in names}) == len(row_ids)


def test_a_wav_holds_the_samples_in_16_bits() -> None:
    audio = np.array([0.0, 0.5, -0.5, 1.0, -1.0, 1.5, -3.0], np.float32)
    data, rate_hz = soundfile.read(io.BytesIO(encode_wav(audio, 24_000)), dtype="int16")
    assert rate_hz == 24_000
    assert data.tolist() == [0, 16384, -16384, 32767, -32767, 32767, -32767]


def test_codes_are_int16() -> None:
    codes = np.arange(32).reshape(2, 16)
    read = np.load(io.BytesIO(encode_codes(codes)), allow_pickle=False)
    assert read.dtype == np.int16
    assert (read == codes).all()
