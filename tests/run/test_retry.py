"""Rows that ended, made again: by id, by reason, with which seed; and the folder alone knows the job."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.run.support import journalled, make_config, make_rows, read_manifest, snapshot, start_job, wait_until
from tts_batch.cli.main import main
from tts_batch.errors import ExitStatus, UsageError
from tts_batch.plan.seeds import derive_seed
from tts_batch.run.job import read_status, run_job

Fake = Callable[..., None]


def test_a_redone_row_is_another_draw_and_the_others_stay(tmp_path: Path, fake: Fake) -> None:
    rows = make_rows(5)
    rows[4]["seed"] = 7
    config = make_config(tmp_path, rows)
    run_job(config)
    before = snapshot(config.out)
    summary = run_job(config.model_copy(update={"redo": ("row-1", "row-4")}))
    assert (summary.made, summary.ok) == (2, 5)
    after = snapshot(config.out)
    assert [row_id for row_id in before if before[row_id] != after[row_id]] == ["row-1"]  # a given seed stays
    row = read_manifest(config.out)[1]
    assert row["attempt_seeds"] == [derive_seed(0, "row-1", attempt=attempt) for attempt in (0, 1)]
    assert row["fingerprint"] == before["row-1"][4]
    assert run_job(config).made == 0
    with pytest.raises(UsageError, match="'row-9'"):
        run_job(config.model_copy(update={"redo": ("row-9",)}))
    assert snapshot(config.out) == after


def test_a_redo_that_is_killed_is_pending_and_goes_on(tmp_path: Path, fake: Fake) -> None:
    config = make_config(tmp_path, 6)
    run_job(config)
    before = snapshot(config.out)
    run = start_job(config.model_copy(update={"redo": ("row-2",)}), faults={"row-2": "hang"})
    wait_until(lambda: read_status(config.out)["pending"] == 1)
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()
    status = read_status(config.out)
    assert (status["state"], status["ok"], status["pending"]) == ("broken off", 5, 1)
    assert run_job(config).made == 1
    after = snapshot(config.out)
    assert [row_id for row_id in before if before[row_id] != after[row_id]] == ["row-2"]


def test_retry_by_reason(tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(8)
    rows[6]["text"] = ""
    config = make_config(tmp_path, rows, attempts=2)
    fake(faults={"row-1": "length", "row-2": "silent", "row-3": "strange", "row-4": "raise"})
    assert run_job(config).failed == 5
    seeds = {row["id"]: row["attempt_seeds"] for row in read_manifest(config.out)}
    fake()
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    monkeypatch.chdir(tmp_path)  # the folder knows where its table is
    assert main(["retry", str(config.out), "--reason", "silent_output", "--progress", "none"]) == ExitStatus.SOME_FAILED
    status = {row["id"]: row["status"] for row in read_manifest(config.out)}
    assert [row_id for row_id, word in status.items() if word == "failed"] == ["row-1", "row-3", "row-4", "row-6"]
    assert main(["retry", str(config.out), "--progress", "none"]) == ExitStatus.SOME_FAILED
    after = {row["id"]: row for row in read_manifest(config.out)}
    assert [row_id for row_id, row in after.items() if row["status"] == "failed"] == ["row-6"]
    for drawn in ("row-1", "row-2"):  # the same draw would fail again
        assert after[drawn]["attempt_seeds"] == [derive_seed(0, drawn, attempt=attempt) for attempt in range(3)]
    for not_drawn in ("row-3", "row-4"):  # the same draw again, as if nothing had happened
        assert set(after[not_drawn]["attempt_seeds"]) == set(seeds[not_drawn])
        assert after[not_drawn]["attempts"] == len(after[not_drawn]["attempt_seeds"]) == len(seeds[not_drawn]) + 1
    assert journalled(config.out)["row-0"] == 1


def test_the_folder_remembers_what_it_was_made_from(tmp_path: Path, fake: Fake) -> None:
    from tts_batch.run.existing_run import load_job

    config = make_config(tmp_path, 2, checks={"noise_flatness": None}, attempts=3)
    run_job(config)
    run = json.loads((config.out / "run.json").read_text())
    run["working_folder"], run["config"]["data"] = str(tmp_path), ["table.jsonl"]
    (config.out / "run.json").write_text(json.dumps(run))
    recalled = load_job(config.out, attempts=5)
    assert recalled == config.model_copy(update={"attempts": 5})
    with pytest.raises(UsageError, match="not a run folder"):
        load_job(tmp_path)
