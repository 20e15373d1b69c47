"""Tables made in Python arrive on disk as they are, once for each content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tts_batch.errors import UsageError
from tts_batch.memory_table import as_arrow, write_table

ROWS = [{"id": "a", "text": "One."}, {"id": "b", "text": "Two.", "topic": "x"}]


@pytest.mark.parametrize(
    "table",
    [ROWS, iter(ROWS), tuple(ROWS), pa.Table.from_pylist([ROWS[0] | {"topic": None}, ROWS[1]]), pd.DataFrame(ROWS)],
    ids=["list", "iterator", "tuple", "pyarrow", "pandas"],
)
def test_the_usual_kinds_of_table(table: Any) -> None:
    assert as_arrow(table).to_pylist() == [{"id": "a", "text": "One.", "topic": None}, ROWS[1]]


def test_a_filtered_frame_brings_no_index_column() -> None:
    frame = pd.DataFrame(ROWS)
    assert as_arrow(frame[frame["id"] == "b"]).column_names == ["id", "text", "topic"]


@pytest.mark.parametrize("table", [[], 5, "text", [1, 2], {"text": ["a"]}, None])
def test_what_is_no_table_is_a_usage_error(table: Any) -> None:
    with pytest.raises(UsageError, match="A table is a path, a list of dicts"):
        as_arrow(table)


def test_a_column_of_mixed_kinds_is_named() -> None:
    with pytest.raises(UsageError, match="column 'text' mixes"):
        as_arrow([{"text": "One."}, {"text": 2}])


def test_recordings_keep_their_form() -> None:
    array = {"array": np.zeros(4, np.float32), "sampling_rate": 16_000}
    rows = as_arrow([{"text": "a", "ref_audio": b"RIFF", "other": array}]).to_pylist()
    assert rows == [{"text": "a", "ref_audio": b"RIFF", "other": {"array": [0.0] * 4, "sampling_rate": 16_000}}]


def test_a_pair_of_samples_and_rate_is_a_recording() -> None:
    samples = np.zeros(4, np.float32)
    for pair in [(samples, 16_000), (samples.tolist(), np.int64(16_000))]:
        (row,) = as_arrow([{"text": "a", "ref_audio": pair}]).to_pylist()
        assert row["ref_audio"] == {"array": [0.0] * 4, "sampling_rate": 16_000}


def test_paths_of_recordings_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = [Path("a.wav"), "b/c.wav", "/abs/d.wav", "https://host/e.wav", None, " "]
    table = as_arrow([{"text": "t", "prompt_wav": cell} for cell in cells])
    path = write_table(table, tmp_path / "out", {})
    here = str(tmp_path)
    written = pq.read_table(path)["prompt_wav"].to_pylist()
    assert written == [f"{here}/a.wav", f"{here}/b/c.wav", "/abs/d.wav", "https://host/e.wav", None, " "]


def test_the_same_content_is_one_file(tmp_path: Path) -> None:
    first = write_table(as_arrow(ROWS), tmp_path, {})
    assert write_table(as_arrow(pd.DataFrame(ROWS).iloc[:1]), tmp_path, {}) != first
    assert write_table(as_arrow(ROWS), tmp_path, {}) == first
    assert len(list(tmp_path.iterdir())) == 2


def test_a_table_without_text_is_refused_before_it_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no column 'text'"):
        write_table(as_arrow([{"line": "One."}]), tmp_path / "out", {})
    assert not (tmp_path / "out").exists()
