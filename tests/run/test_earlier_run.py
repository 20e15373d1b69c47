"""Clips of an earlier run are copied by their fingerprint, not made again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.run.support import journalled, make_config, make_rows, read_manifest, snapshot
from tts_batch.errors import UsageError
from tts_batch.run.job import run_job
from tts_batch.store.clips import clip_path
from tts_batch.store.verify import verify_run

Fake = Callable[..., None]


def test_only_new_and_changed_rows_are_made(tmp_path: Path, fake: Fake) -> None:
    fake(faults={"row-3": "silent"})
    rows = make_rows(10)
    earlier = make_config(tmp_path, rows, save_codes=True, out=tmp_path / "earlier")
    run_job(earlier)
    (earlier.out / clip_path("row-5")).unlink()
    (earlier.out / clip_path("row-6")).write_bytes(b"RIFF" * 400)
    fake()
    rows[1]["text"] = "Another sentence."
    rows += make_rows(12)[10:]
    config = make_config(tmp_path, rows, save_codes=True, out=tmp_path / "new", skip_existing=earlier.out)
    summary = run_job(config)
    # row-1 has changed, row-3 failed, the clips of row-5 and row-6 are gone or damaged; two rows are new
    assert (summary.ok, summary.made) == (12, 6)
    assert list(verify_run(config.out)) == []
    assert set(journalled(config.out).values()) == {1}
    alone = make_config(tmp_path, rows, save_codes=True, out=tmp_path / "alone")
    run_job(alone)
    assert snapshot(config.out) == snapshot(alone.out)
    assert run_job(config).made == 0


def test_a_seed_of_its_own_finds_a_clip_under_another_id(tmp_path: Path, fake: Fake) -> None:
    row: dict[str, Any] = {"text": "The same sentence.", "speaker": "vivian", "seed": 7}
    earlier = make_config(tmp_path, [row | {"id": "old"}], out=tmp_path / "earlier")
    run_job(earlier)
    config = make_config(tmp_path, [row | {"id": "new"}], out=tmp_path / "new", skip_existing=earlier.out)
    assert run_job(config).made == 0
    (made,) = read_manifest(config.out)
    assert (made["id"], made["audio"], made["status"]) == ("new", clip_path("new"), "ok")
    assert (config.out / made["audio"]).read_bytes() == (earlier.out / clip_path("old")).read_bytes()


def test_from_a_store_into_a_folder(s3: Any, tmp_path: Path, fake: Fake) -> None:
    earlier = make_config(tmp_path, make_rows(4), out=f"{s3.url}/earlier")
    run_job(earlier)
    config = make_config(tmp_path, make_rows(5), out=tmp_path / "new", skip_existing=earlier.out)
    assert run_job(config).made == 1
    back = make_config(tmp_path, make_rows(5), out=f"{s3.url}/back", skip_existing=config.out)
    assert run_job(back).made == 0


def test_what_cannot_be_copied_is_refused(tmp_path: Path, fake: Fake) -> None:
    with pytest.raises(UsageError, match=r"no run\.json"):
        run_job(make_config(tmp_path, skip_existing=tmp_path / "none"))
    earlier = make_config(tmp_path, 2, out=tmp_path / "earlier", format="flac")
    run_job(earlier)
    with pytest.raises(UsageError, match="holds flac clips and this run makes wav"):
        run_job(make_config(tmp_path, 2, out=tmp_path / "new", skip_existing=earlier.out))
