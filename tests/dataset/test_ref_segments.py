"""Columns that say which part of a recording is cloned, as NeMo's manifests have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.dataset.support import ReadRows, reasons
from tts_batch.config import JobConfig
from tts_batch.dataset.audio import content_key, load_reference
from tts_batch.dataset.notes import Notes
from tts_batch.dataset.rows import read_tables
from tts_batch.errors import RowError
from tts_batch.memory_table import RowsTable
from tts_batch.records import Row

NEMO = {"text": "a", "audio_filepath": "long.wav"}
MAP = {"ref_audio": "audio_filepath"}


@pytest.fixture
def recording(read: ReadRows, tone: Any) -> Any:
    """Eight seconds in long.wav: four of a tone, four of its half."""
    samples = np.concatenate([tone(4.0), tone(4.0) / 2])
    soundfile.write(read.folder / "long.wav", samples, 24_000, subtype="FLOAT")
    return samples


def read_all(read: ReadRows, *rows: dict[str, Any], **options: Any) -> list[Row]:
    return read.written("t.jsonl", "".join(json.dumps(row) + "\n" for row in rows), **options)


def test_offset_and_duration_of_nemo_are_honoured(read: ReadRows, recording: Any) -> None:
    rows = read_all(read, *(NEMO | {"offset": offset, "duration": 4.0} for offset in (0.0, 4.0)), map=MAP)
    first, second = (row.ref_audio for row in rows)
    assert first is not None and second is not None
    np.testing.assert_allclose(load_reference(first), recording[:96_000], atol=1e-6)
    np.testing.assert_allclose(load_reference(second), recording[96_000:], atol=1e-6)
    assert content_key(first) != content_key(second) and rows[0].id != rows[1].id
    assert second.label == "long.wav#t=4,8"
    assert any("'offset' and 'duration' give the part of ref_audio" in note for note in read.notes)
    assert "ref_offset ← offset, ref_duration ← duration" in read.reports[0]


def test_a_duration_alone_is_noted_only_beside_a_reference(read: ReadRows, recording: Any) -> None:
    read_all(read, NEMO | {"duration": 8.0})
    assert not read.notes
    read_all(read, NEMO | {"duration": 8.0}, map=MAP)
    assert any("'duration' is not used; did you mean 'ref_duration'" in note for note in read.notes)


def test_a_part_that_ends_before_it_begins_is_a_bad_row(read: ReadRows, recording: Any) -> None:
    rows = read_all(read, *({"text": "a", "ref_audio": f"long.wav#t={part}"} for part in ("2,1", "2,2", "2,3")))
    assert reasons(rows) == ["bad_row", "bad_row", None]


@pytest.mark.parametrize(
    ("columns", "samples"),
    [
        ({"duration": 4.0}, 192_000),  # how long some recording is, not which part is meant
        ({"offset": 5}, 72_000),
        ({"offset": "5.0", "duration": "2"}, 48_000),
        ({"offset": None, "duration": None}, 192_000),
        ({"offset": 0, "duration": 1.5}, 36_000),
        ({"ref_offset": 1, "ref_duration": 2, "offset": 5}, 48_000),
        ({"ref_duration": 2}, 48_000),
    ],
)
def test_which_columns_count(read: ReadRows, recording: Any, columns: dict[str, Any], samples: int) -> None:
    (row,) = read_all(read, NEMO | columns, map=MAP)
    assert row.ref_audio is not None and load_reference(row.ref_audio).size == samples


def test_the_columns_can_be_named_and_left_unused(read: ReadRows, recording: Any) -> None:
    row = NEMO | {"offset": 4, "start": 1, "length": 2}
    (named,) = read_all(read, row, map=MAP | {"ref_offset": "start", "ref_duration": "length"})
    (unused,) = read_all(read, row, map=MAP | {"ref_offset": ""})
    assert named.ref_audio and load_reference(named.ref_audio).size == 48_000
    assert unused.ref_audio and load_reference(unused.ref_audio).size == 192_000
    assert unused.extras == {"offset": 4, "start": 1, "length": 2}
    (without,) = read_all(read, {"text": "a", "offset": 4})
    assert without.extras == {"offset": 4} and not read.notes


@pytest.mark.parametrize("cell", [-1, "x", True, 1e12, [1], "nan", float("inf")])
def test_what_is_no_number_of_seconds(read: ReadRows, recording: Any, cell: Any) -> None:
    assert reasons(read_all(read, NEMO | {"offset": cell}, NEMO | {"offset": 1}, map=MAP)) == ["bad_row", None]


def test_a_part_of_bytes_and_of_samples(read: ReadRows, recording: Any) -> None:
    data = (read.folder / "long.wav").read_bytes()
    stereo = np.stack([recording, recording])
    cells: list[Any] = [data, {"bytes": data, "path": None}, (recording, 24_000), (stereo, 24_000), (stereo.T, 24_000)]
    table = RowsTable([{"text": "a", "ref_audio": cell, "ref_offset": 4, "ref_duration": 2} for cell in cells])
    config = JobConfig(data=("rows",), out=Path("out"))
    rows = list(read_tables([table], config, Notes(), with_extras=False))
    for row in rows:
        assert row.ref_audio is not None
        np.testing.assert_allclose(load_reference(row.ref_audio), recording[96_000:144_000], atol=1e-6)


def test_a_cell_may_name_the_part_itself(read: ReadRows, recording: Any) -> None:
    rows = read_all(
        read,
        {"text": "a", "ref_audio": "long.wav#t=4,6"},
        {"text": "a", "ref_audio": "long.wav#t=4,6", "ref_offset": 1},
        {"text": "a", "ref_audio": "long.wav#t=1e9"},
    )
    assert reasons(rows) == [None, "bad_row", None]
    assert rows[0].ref_audio and load_reference(rows[0].ref_audio).size == 48_000
    (row,) = read_all(read, {"text": "a", "ref_audio": "long.wav#t=4,6"}, audio_root=read.folder)
    assert row.ref_audio and load_reference(row.ref_audio).size == 48_000
    assert reasons(read_all(read, {"text": "a", "ref_audio": "../x.wav#t=4,6"}, audio_root=read.folder)) == [
        "ref_forbidden"
    ]


def test_a_part_beyond_the_end_fails_its_row_alone(read: ReadRows, recording: Any) -> None:
    rows = read_all(read, NEMO | {"offset": 7.8, "duration": 4}, map=MAP)
    assert reasons(rows) == [None]  # reading looks into no file; the plan does
    assert rows[0].ref_audio is not None and rows[0].ref_audio.label.endswith("#t=7.8,11.8")
    with pytest.raises(RowError, match=r"lasts 8\.00 s and has no part from 7\.8 s to 11\.8 s"):
        load_reference(rows[0].ref_audio)
