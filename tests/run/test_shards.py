"""Parts of one table, side by side in one folder: each row once, and one manifest at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.run.support import journalled, kill, make_config, snapshot, start_job, wait_until
from tts_batch.errors import ExitStatus, UsageError
from tts_batch.plan.planner import make_plan
from tts_batch.plan.shards import Shard
from tts_batch.run import existing_run
from tts_batch.run.existing_run import compact_if_last, finish_run
from tts_batch.run.job import read_status, run_job
from tts_batch.run.other_rows import OtherRows

Fake = Callable[..., None]


def test_every_row_is_in_one_shard() -> None:
    ids = [f"row-{n}" for n in range(3_000)]
    shards = [Shard.parse(f"{number}/3") for number in (1, 2, 3)]
    sizes = [sum(shard.holds(row_id) for row_id in ids) for shard in shards]
    assert sum(sizes) == 3_000
    assert min(sizes) > 850
    assert all(Shard.parse(None).holds(row_id) for row_id in ids)
    for useless in ("0/3", "4/3", "1/0"):
        with pytest.raises(UsageError, match="--shard"):
            Shard.parse(useless)


def test_shards_side_by_side(tmp_path: Path, fake: Fake) -> None:
    config = make_config(tmp_path, 40)
    runs = [start_job(config.model_copy(update={"shard": f"{n}/3"}), row_s=0.5) for n in (1, 2, 3)]
    wait_until(lambda: len(list(config.out.glob("*run.lock"))) == 3)
    with pytest.raises(UsageError, match="Another run works in"):
        run_job(config)
    with pytest.raises(UsageError, match="Another run works in"):
        run_job(config.model_copy(update={"shard": "1/2"}))
    with pytest.raises(UsageError, match="Another run works in"):
        run_job(config.model_copy(update={"shard": "1/3"}))
    for run in runs:
        said, _ = run.communicate(timeout=120)
        assert run.returncode == 0, said
    assert set(journalled(config.out).values()) == {1}
    status = read_status(config.out)
    assert (status["state"], status["ok"], status["pending"]) == ("finished", 40, 0)
    whole = make_config(tmp_path, 40, out=tmp_path / "whole")
    run_job(whole)
    assert snapshot(config.out) == snapshot(whole.out)


def test_what_keeps_the_last_shard_from_its_manifest_is_told(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(existing_run, "LAST_SHARD_S", 2.0)
    config = make_config(tmp_path, 2)
    run_job(config)
    (config.out / "run.json").write_text("{")
    with pytest.raises(UsageError, match=r"run\.json is damaged"):
        compact_if_last(config, make_plan(config), OtherRows(config))


def test_a_missing_shard_is_pending_and_the_whole_goes_on(tmp_path: Path, fake: Fake) -> None:
    config = make_config(tmp_path, 30)
    fake(faults={"row-0": "silent"})
    first = run_job(config.model_copy(update={"shard": "1/2"}))
    assert first.exit_status in (ExitStatus.OK, ExitStatus.SOME_FAILED)
    assert first.rows == first.ok + first.failed < 30
    assert not (config.out / "manifest.parquet").exists()
    assert read_status(config.out)["state"] == "waiting for its other shards"
    killed = start_job(config.model_copy(update={"shard": "2/2"}), row_s=0.5)
    wait_until(lambda: sum(journalled(config.out).values()) > first.rows)
    kill(killed.pid)
    killed.communicate()
    finished = finish_run(config.out)
    assert (finished.exit_status, finished.rows) == (ExitStatus.STOPPED, 30)
    assert finished.pending == 30 - sum(journalled(config.out).values())
    assert run_job(config).made == finished.pending  # another number of parts, or none, changes nothing
    assert set(journalled(config.out).values()) == {1}
    with pytest.raises(UsageError, match="--overwrite"):
        run_job(config.model_copy(update={"shard": "1/2", "overwrite": True}))
