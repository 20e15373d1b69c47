"""Whose folder it is: other files, another table, fewer takes; what a refused start leaves; what run.json remembers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tts_batch
from tests.run.support import make_config, make_rows, read_manifest, snapshot
from tts_batch.config import JobConfig
from tts_batch.errors import UsageError
from tts_batch.run.existing_run import finish_run
from tts_batch.run.job import read_status, run_job
from tts_batch.store.verify import verify_run

Fake = Callable[..., None]


def clips_of(out: Path) -> set[str]:
    return {path.stem for path in out.glob("[0-9a-f][0-9a-f]/*.wav")}


def refused(config: JobConfig, words: str) -> None:
    """The start is refused, and changes nothing."""
    before = {path: path.stat().st_mtime_ns for path in config.out.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=words):
        run_job(config)
    assert {path: path.stat().st_mtime_ns for path in config.out.rglob("*") if path.is_file()} == before


def test_another_table_is_refused(tmp_path: Path, fake: Fake) -> None:
    run_job(make_config(tmp_path, 6))
    other = make_config(tmp_path, [{"id": "else", "text": "Another table.", "speaker": "vivian"}])
    refused(other, r"6 rows with a clip in .* such as 'row-0', are not in this table\. .*--extend .*--prune")
    shorter = make_config(tmp_path, 5)
    refused(shorter, "1 row with a clip in .* such as 'row-5', is not in this table")
    with pytest.raises(UsageError, match="rows with a clip"):
        tts_batch.synth([{"id": "else", "text": "Other."}], out=other.out, engine=other.engine, model="tiny-random")
    assert not list(other.out.glob("rows-*"))
    assert run_job(make_config(tmp_path, 8)).made == 2, "a longer table goes on"


def test_fewer_takes_and_a_smaller_limit_are_named(tmp_path: Path, fake: Fake) -> None:
    run_job(make_config(tmp_path, 3, takes=3))
    refused(make_config(tmp_path, 3), r"6 rows .* not in this table \(--takes was 3 and is 1\)")
    refused(make_config(tmp_path, 3, takes=3, limit=1), r"6 rows .*\(--limit was not given and is 1\)")


def test_rows_that_only_failed_are_missed_by_nobody(tmp_path: Path, fake: Fake) -> None:
    fake(faults={"row-2": "silent"})
    run_job(make_config(tmp_path, 3))
    assert run_job(make_config(tmp_path, 2)).rows == 2


def test_extend_keeps_rows_of_the_table_before(tmp_path: Path, fake: Fake) -> None:
    fake(faults={"row-3": "silent"})
    first = make_config(tmp_path, [{**row, "score": n} for n, row in enumerate(make_rows(5))])
    run_job(first)
    before = {row["id"]: row for row in read_manifest(first.out)}
    rows = [{"id": "new", "text": "A new table.", "speaker": "vivian", "score": 9}, *make_rows(1)]
    second = make_config(tmp_path, rows, extend=True)
    for made in (1, 0):
        summary = run_job(second)
        assert (summary.rows, summary.ok, summary.failed, summary.pending, summary.made) == (6, 5, 1, 0, made)
        after = read_manifest(first.out)
        assert [row["id"] for row in after] == ["new", "row-0", "row-1", "row-2", "row-3", "row-4"]
        assert [row["row_index"] for row in after] == list(range(6))
        for row in after[2:]:
            assert {**row, "row_index": 0} == {**before[row["id"]], "row_index": 0}
    assert read_status(first.out)["rows"] == 6
    assert not list(verify_run(first.out))
    assert finish_run(first.out).ok == 5
    assert len(read_manifest(first.out)) == 6


def test_extend_needs_the_manifest_of_what_it_keeps(tmp_path: Path, fake: Fake) -> None:
    config = make_config(tmp_path, 4)
    run_job(config)
    (config.out / "manifest.parquet").unlink()
    refused(make_config(tmp_path, 2, extend=True), "'row-2' is not in it yet: `tts-batch finish")


def test_prune_removes_the_clips_of_other_rows(tmp_path: Path, fake: Fake) -> None:
    config = make_config(tmp_path, 6, save_codes=True)
    run_job(config)
    kept = {row_id: facts for row_id, facts in snapshot(config.out).items() if row_id in ("row-0", "row-1")}
    summary = run_job(make_config(tmp_path, 2, prune=True, save_codes=True))
    assert (summary.rows, summary.ok, summary.made) == (2, 2, 0)
    assert clips_of(config.out) == {"row-0", "row-1"}
    assert snapshot(config.out) == kept
    assert not list(verify_run(config.out))
    assert run_job(make_config(tmp_path, 6, save_codes=True)).made == 4


def test_a_folder_of_other_files_is_refused(tmp_path: Path, fake: Fake) -> None:
    config = make_config(tmp_path, 2)
    config.out.mkdir()
    (config.out / "thesis.txt").write_text("mine")
    refused(config, r"holds files that no run wrote \(thesis.txt, …\)")
    refused(config.model_copy(update={"overwrite": True}), "thesis.txt")
    (config.out / "thesis.txt").rename(config.out / ".hidden")
    assert run_job(config).ok == 2


def test_a_refused_start_leaves_nothing(tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,0")
    config = make_config(tmp_path, 2, device="cuda", out=tmp_path / "some" / "where" / "out")
    with pytest.raises(UsageError, match="names 0 twice"):
        run_job(config)
    with pytest.raises(UsageError, match="no rows"):
        (tmp_path / "empty.csv").write_text("id,text\n")
        run_job(config.model_copy(update={"data": (str(tmp_path / "empty.csv"),), "device": "cpu"}))
    assert not (tmp_path / "some").exists()
    (tmp_path / "mine").mkdir()
    with pytest.raises(UsageError, match="no rows"):
        tts_batch.synth(tmp_path / "empty.csv", out=tmp_path / "mine", device="cpu")
    assert (tmp_path / "mine").exists(), "an empty folder that was there is still there"


def test_run_json_keeps_the_history_of_its_runs(tmp_path: Path, fake: Fake) -> None:
    fake(faults={"row-1": "silent"})
    config = make_config(tmp_path, 4)
    run_job(config)
    fake()
    run_job(config, retry=["silent_output"])
    finish_run(config.out)
    history: list[dict[str, Any]] = json.loads((config.out / "run.json").read_text())["history"]
    assert [(run["command"], run["state"], run["ok"], run["made"]) for run in history] == [
        ("synth", "finished", 3, 4),
        ("retry", "finished", 4, 1),
        ("finish", "finished", 4, 0),
    ]
    assert all(run["started"] <= run["ended"] and run["data"] == list(config.data) for run in history)
