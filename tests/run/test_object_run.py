"""Runs in an object store: a real S3 server, real processes, kills and faults of the server."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import soundfile

import tts_batch
from tests.run.support import ENGINE, kill, make_config, make_rows, snapshot, start_job, wait_until
from tts_batch.config import JobConfig
from tts_batch.errors import CannotContinueError, UsageError
from tts_batch.export.job import export_run
from tts_batch.run.existing_run import finish_run, load_job
from tts_batch.run.job import run_job
from tts_batch.store.status import read_status
from tts_batch.store.storage import storage_of, working_folder
from tts_batch.store.verify import remove_damaged, verify_run

Fake = Callable[..., None]
VOICE = Path(__file__).parents[1] / "data"


def put_table(s3: Any, rows: list[dict[str, Any]], name: str = "table.jsonl") -> str:
    s3.files.pipe_file(f"{s3.url}/{name}", "".join(json.dumps(row) + "\n" for row in rows).encode())
    return f"{s3.url}/{name}"


def stored_config(s3: Any, tmp_path: Path, rows: list[dict[str, Any]], **options: Any) -> JobConfig:
    return make_config(tmp_path, (), data=(put_table(s3, rows),), out=f"{s3.url}/run", **options)


def stored_snapshot(config: JobConfig) -> dict[str, tuple[Any, ...]]:
    """What `snapshot` says of a local run; every clip is brought here."""
    with working_folder(config.out, tables=True) as folder:
        storage = storage_of(folder)
        for name in storage.clips():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(storage.read(name))
        return snapshot(folder)


def problems(config: JobConfig) -> list[str]:
    with working_folder(config.out, tables=True) as folder:
        return [problem.kind for problem in verify_run(folder)]


def local_snapshot(tmp_path: Path, rows: list[dict[str, Any]], **options: Any) -> dict[str, tuple[Any, ...]]:
    folder = tmp_path / "local"
    folder.mkdir()
    config = make_config(folder, rows, **options)
    run_job(config)
    return snapshot(config.out)


def test_a_run_in_an_object_store_is_a_local_one(s3: Any, tmp_path: Path, fake: Fake) -> None:
    fake(faults={"row-3": "silent"})
    rows = make_rows(30)
    config = stored_config(s3, tmp_path, rows, save_codes=True)
    summary = run_job(config)
    assert (summary.ok, summary.failed, str(summary.out)) == (29, 1, str(config.out))
    assert stored_snapshot(config) == local_snapshot(tmp_path, rows, save_codes=True)
    assert problems(config) == []
    status = read_status(config.out)
    assert (status["state"], status["ok"], status["failed"]) == ("finished", 29, 1)
    again = run_job(config)
    assert (again.made, again.ok) == (0, 29)
    assert [path for path in s3.files.find(config_url(s3)) if path.endswith((".lock", ".tmp"))] == []
    assert list(Path(tempfile.gettempdir()).glob(f"tts-batch-run-*-{__import__('os').getpid()}-*")) == []


def config_url(s3: Any) -> str:
    return f"{s3.url}/run"


def test_what_is_gone_or_failed_is_made_again(s3: Any, tmp_path: Path, fake: Fake) -> None:
    fake(faults={"row-3": "silent"})
    config = stored_config(s3, tmp_path, make_rows(12))
    run_job(config)
    clips = [path for path in s3.files.find(config_url(s3)) if path.endswith(".wav")]
    s3.files.rm_file(clips[0])
    s3.files.pipe_file(clips[1], b"RIFF")
    s3.files.pipe_file(f"{config_url(s3)}/ab/stray.wav", b"RIFF")
    assert sorted(problems(config)) == ["changed", "missing", "orphan", "unreadable"]
    with working_folder(config.out, tables=True) as folder:
        for problem in verify_run(folder):
            remove_damaged(folder, problem)
    fake()
    summary = run_job(load_job(config.out, progress="none"), retry=("silent_output",))
    assert (summary.ok, summary.failed, summary.made) == (12, 0, 3)
    assert problems(config) == ["orphan"]
    assert finish_run(config.out).ok == 12
    assert run_job(config.model_copy(update={"overwrite": True})).made == 12


def test_shards_in_an_object_store_end_in_one_manifest(s3: Any, tmp_path: Path, fake: Fake) -> None:
    rows = make_rows(20)
    config = stored_config(s3, tmp_path, rows)
    runs = [start_job(config.model_copy(update={"shard": f"{number}/2"})) for number in (1, 2)]
    said = [run.communicate(timeout=60)[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    assert stored_snapshot(config) == local_snapshot(tmp_path, rows)


def test_twenty_kills_and_a_server_that_fails(s3: Any, tmp_path: Path, fake: Fake) -> None:
    """Requests fail with 500 and 503, are slow, or succeed without an answer; nothing is lost or there twice."""
    rows = make_rows(160)
    rows[17]["text"] = " "
    faults = {"row-40": "silent", "row-90": "error"}
    config = stored_config(s3, tmp_path, rows)
    moments, kills, made_before = random.Random(3), 0, 0
    s3.faults.share = 0.03
    while kills < 20:
        run = start_job(config, faults=faults, row_s=0.04, group_s=0.1)
        wait_for_work(s3, run) if moments.random() < 0.5 else time.sleep(moments.uniform(0.3, 2.0))
        assert run.poll() is None, "the kills must hit work"
        kill(run.pid)
        run.communicate()
        kills += 1
    made_before = read_status(config.out)["ok"]
    assert 0 < made_before < 157
    fake(faults=faults)
    summary = run_job(config)
    assert (summary.ok, summary.failed) == (157, 3)
    assert summary.made <= 159 - made_before
    s3.faults.share = 0.0
    assert stored_snapshot(config) == local_snapshot(tmp_path, rows)
    assert problems(config) == []
    assert {"500", "503", "slow", "lost answer"} <= s3.faults.counts.keys()


def wait_for_work(s3: Any, run: subprocess.Popen[str]) -> None:
    """Wait until a run has recorded something, or has ended."""
    parts = num_parts(s3)
    wait_until(lambda: num_parts(s3) > parts or run.poll() is not None)


def num_parts(s3: Any) -> int:
    return len(s3.files.glob(f"{config_url(s3)}/journal/*/*.jsonl"))


def test_a_store_that_stays_away_ends_the_run_and_fails_no_row(s3: Any, tmp_path: Path, fake: Fake) -> None:
    config = stored_config(s3, tmp_path, make_rows(60))
    run = start_job(config, row_s=0.05, group_s=0.1, deadline_s=1.0)
    wait_for_work(s3, run)
    s3.faults.away = True
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 5, output
    assert "the same command resumes" in output
    s3.faults.away = False
    fake()
    assert (summary := run_job(config)).failed == 0
    assert summary.ok == 60


def test_recordings_beside_a_table_and_behind_urls(s3: Any, tmp_path: Path, fake: Fake) -> None:
    wave = tmp_path / "voice.wav"
    soundfile.write(wave, [0.1, -0.1] * 24_000, 24_000)
    s3.files.put_file(str(wave), f"{s3.url}/in/voices/one.wav")
    rows = [
        {"id": "beside", "text": "One.", "ref_audio": "voices/one.wav", "ref_text": "x"},
        {"id": "url", "text": "Two.", "ref_audio": f"{s3.url}/in/voices/one.wav", "ref_text": "x"},
        {"id": "gone", "text": "Three.", "ref_audio": f"{s3.url}/in/voices/two.wav", "ref_text": "x"},
        {"id": "outside", "text": "Four.", "ref_audio": "../secrets/one.wav", "ref_text": "x"},
    ]
    table = put_table(s3, rows, "in/table.jsonl")
    config = make_config(tmp_path, (), data=(table,), out=f"{s3.url}/run", allow_url=True)
    run_job(config)
    with working_folder(config.out, tables=True) as folder:
        rows = pq.read_table(folder / "manifest.parquet").to_pylist()
    found = {row["id"]: (row["status"], row["reason"]) for row in rows}
    assert found == {
        "beside": ("ok", None),
        "url": ("ok", None),
        "gone": ("failed", "ref_unreadable"),
        "outside": ("failed", "ref_missing"),
    }


def test_rows_of_python_and_their_clips(s3: Any, fake: Fake) -> None:
    out = f"{s3.url}/from-python"
    result = tts_batch.synth(make_rows(3), out=out, model="tiny-random", engine=ENGINE, device="cpu", progress="none")
    assert result.ok == 3
    assert [clip.id for clip in result.clips()] == ["row-0", "row-1", "row-2"]
    assert result.manifest().num_rows == 3
    assert load_job(Path(out)).data[0].startswith(f"{out}/rows-")


def test_nothing_that_is_kept_or_said_holds_a_credential(s3: Any, tmp_path: Path, fake: Fake) -> None:
    config = stored_config(s3, tmp_path, make_rows(4))
    program = [sys.executable, "-m", "tts_batch", "synth", config.data[0], "--out", config_url(s3)]
    options = ["--model", "tiny-random", "--engine", ENGINE, "--device", "cpu"]
    run = subprocess.run([*program, *options], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    kept = b"".join(s3.files.cat_file(path) for path in s3.files.find(config_url(s3)))
    assert config_url(s3).encode() in kept
    for secret in ("not-to-be-seen", "AWS_SECRET"):
        assert secret not in run.stdout + run.stderr
        assert secret.encode() not in kept
    with pytest.raises(UsageError, match="holds credentials"):
        run_job(config.model_copy(update={"out": Path("s3://key:secret@bucket/run")}))
    with pytest.raises(UsageError, match="holds credentials") as caught:
        run_job(config.model_copy(update={"data": ("s3://key:secret@bucket/t.csv",)}))
    assert "secret@" not in str(caught.value)


def test_what_cannot_hold_a_run_is_refused(s3: Any, tmp_path: Path, fake: Fake) -> None:
    config = stored_config(s3, tmp_path, make_rows(4))
    with pytest.raises(UsageError, match="belongs to one process"):
        run_job(config.model_copy(update={"out": Path("memory://run")}))
    with pytest.raises(UsageError, match="cannot hold a run folder"):
        run_job(config.model_copy(update={"out": Path("ftp://host/run")}))
    with pytest.raises(CannotContinueError, match="s3://no-such-bucket-at-all/run"):
        run_job(config.model_copy(update={"out": Path("s3://no-such-bucket-at-all/run")}))


@pytest.mark.parametrize(
    ("name", "to"), [("audiofolder", "s3"), ("webdataset", "s3"), ("hf", "local"), ("nemo", "memory")]
)
def test_exports_from_and_to_stores(s3: Any, tmp_path: Path, fake: Fake, name: str, to: str) -> None:
    config = stored_config(s3, tmp_path, make_rows(6))
    run_job(config)
    out = {"s3": Path(f"{s3.url}/export"), "local": tmp_path / "export", "memory": Path(f"memory://{tmp_path.name}")}[
        to
    ]
    summary = export_run(config.out, name, out)
    assert (summary.exported, summary.out) == (6, out)
    first = files_of(s3, out)
    assert any(path.endswith((".wav", ".tar", ".parquet")) for path in first)
    assert export_run(config.out, name, out).exported == 6
    again = export_run(config.out, name, out, overwrite=True)
    assert again.exported == 6
    assert files_of(s3, out) == first
    assert not any(path.endswith(("run.lock", ".tmp")) for path in first)


def files_of(s3: Any, out: Path) -> dict[str, str]:
    import fsspec

    with_scheme = str(out).replace(":/", "://", 1) if ":/" in str(out) else str(out)
    file_system, root = fsspec.core.url_to_fs(with_scheme, use_listings_cache=False)
    found = {path: file_system.cat_file(path) for path in file_system.find(root)}
    return {path: hashlib.sha256(data).hexdigest() for path, data in found.items()}
