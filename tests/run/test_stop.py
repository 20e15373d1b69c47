"""Real signals to real processes: what was made stays, nothing is made twice, nothing is left behind."""

from __future__ import annotations

import json
import os
import random
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.run.support import (
    ROOT,
    journalled,
    kill,
    make_config,
    make_rows,
    processes_of,
    read_manifest,
    snapshot,
    start_job,
    wait_until,
    write_table,
)
from tts_batch.cli.jobs import describe_summary
from tts_batch.config import JobConfig
from tts_batch.errors import CannotContinueError, ExitStatus, UsageError
from tts_batch.ipc.processes import STOP_SIGNALS
from tts_batch.run import job
from tts_batch.run.job import Limits, read_status, run_job
from tts_batch.store.clips import clip_path
from tts_batch.store.journal import list_segments

Fake = Callable[..., None]
KILLS = int(os.environ.get("KILLS", "2"))  # of each command; 8 are forty in all


def uninterrupted(folder: Path, rows: Any, **options: Any) -> dict[str, tuple[Any, ...]]:
    config = make_config(folder, rows, out=folder / "uninterrupted", **options)
    run_job(config)
    return snapshot(config.out)


def assert_like_uninterrupted(config: JobConfig, folder: Path, rows: Any) -> None:
    assert snapshot(config.out) == uninterrupted(folder, rows)
    assert set(journalled(config.out).values()) == {1}, "a journalled row was made twice"
    assert sorted(path.name for path in config.out.glob("*/*.wav")) == sorted(
        Path(row["audio"]).name for row in read_manifest(config.out) if row["audio"]
    )


def kind_of(process: int) -> str:
    """ "worker" or "clip process"; "" when it has ended."""
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return ""
    return "clip process" if b"clip_process" in command else "worker"


def test_forty_kills_at_random_moments(tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run, one of its two workers, or a clip process: in the end all is as if none had been killed."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    num_rows = 1_200
    rows = make_rows(num_rows)
    rows[17]["text"] = " "
    faults = {"row-40": "silent", "row-90": "length", "row-140": "noise", "row-300": "error"}
    config = make_config(tmp_path, rows, device="cuda")
    moments = random.Random(1)
    run, hits = None, Counter[str]()
    while sum(hits.values()) < 40:
        if run is None:
            run = start_job(config, faults=faults, row_s=0.05)
            wait_until(lambda: len(processes_of(config.out)) >= 4)
        time.sleep(moments.uniform(0.05, 0.5))
        processes = processes_of(config.out)
        if hits["worker"] + hits["clip process"] < 28 and processes and moments.random() < 0.7:
            process = moments.choice(processes)
            hits[kind_of(process)] += 1
            kill(process)
        else:
            number = moments.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
            run.send_signal(number)
            output, _ = run.communicate(timeout=60)
            assert run.returncode in (-signal.SIGKILL, 4, 130), output
            run = None
            hits["run"] += 1
            wait_until(lambda: not processes_of(config.out))
    if run is not None:
        kill(run.pid)
        run.communicate()
        wait_until(lambda: not processes_of(config.out))
    made = sum(journalled(config.out).values())
    assert made < num_rows - 1, "the kills must hit work"
    assert min(hits["run"], hits["worker"], hits["clip process"]) >= 5
    fake(faults=faults)
    summary = run_job(config)
    assert (summary.ok, summary.failed, summary.made) == (num_rows - 5, 5, num_rows - 1 - made)
    assert_like_uninterrupted(config, tmp_path, rows)


def test_kills_through_plan_synth_retry_export_and_finish(tmp_path: Path, fake: Fake) -> None:
    """Each command is killed at random moments and given again, until it ends: as if none had been killed."""
    first = {f"row-{n}": "silent" for n in range(0, 240, 12)}
    lasting: dict[str, str] = {}  # a retry that is given again after its end would make failed rows another time
    moments, hits = random.Random(2), Counter[str]()
    took_s: dict[str, float] = {}  # by the commands that nobody kills

    def run_folder(folder: Path, kills: int) -> tuple[Path, Path]:
        folder.mkdir()
        config = make_config(folder, 240)
        out, exported = config.out, folder / "hf"
        options = ["--model", config.model, "--engine", config.engine, "--device", "cpu", "--progress", "none"]
        for name, arguments, faults in (
            ("plan", [*config.data, *options], first),
            ("synth", [*config.data, "--out", out, *options], first),
            ("retry", [out, "--progress", "none"], lasting),
            ("finish", [out], lasting),
            ("export", [out, "--to", "webdataset", "--out", exported, "--shard-mb", "1"], lasting),
        ):
            for attempt in range(kills + 1):
                environment = {**os.environ, "FAKE_ENGINE": json.dumps({"faults": faults, "row_s": 0.02})}
                command = [sys.executable, "-m", "tts_batch", name, *map(str, arguments)]
                began_s = time.monotonic()
                with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=-1, stderr=-2) as run:
                    if attempt == kills:
                        assert run.communicate(timeout=120)[0] is not None
                        assert run.returncode in (0, 3), name
                        took_s.setdefault(name, time.monotonic() - began_s)
                        break
                    time.sleep(moments.uniform(0.1, 0.8) * took_s[name])
                    hits[name] += run.poll() is None
                    run.kill()
                    run.communicate()
                wait_until(lambda: not processes_of(out))
        return out, exported

    whole, whole_export = run_folder(tmp_path / "whole", 0)
    broken, broken_export = run_folder(tmp_path / "broken", KILLS)
    assert snapshot(broken) == snapshot(whole)
    assert {path.name: path.read_bytes() for path in broken_export.glob("*.tar")} == {
        path.name: path.read_bytes() for path in whole_export.glob("*.tar")
    }
    assert sum(hits.values()) > 5 * KILLS // 2, hits  # a command that goes on may end before its moment


@pytest.mark.parametrize("number", STOP_SIGNALS, ids=lambda number: number.name)
def test_a_first_signal_stops_cleanly(tmp_path: Path, fake: Fake, number: signal.Signals) -> None:
    config = make_config(tmp_path, 120)
    run = start_job(config, row_s=0.05, children=True)
    wait_until(lambda: sum(journalled(config.out).values()) > 5)
    run.send_signal(number)
    started = time.monotonic()
    said, _ = run.communicate(timeout=30)
    assert run.returncode == 4, said
    assert time.monotonic() - started < 8
    assert not processes_of(config.out)
    assert not (config.out / "run.lock").exists()
    standing = [row["status"] for row in read_manifest(config.out)]
    assert 5 < standing.count("ok") < 120
    assert standing.count("pending") == 120 - standing.count("ok")
    assert read_status(config.out)["state"] == "stopped"
    summary = run_job(config)
    assert (summary.ok, summary.made) == (120, standing.count("pending"))
    assert_like_uninterrupted(config, tmp_path, 120)


def test_a_second_signal_ends_at_once(tmp_path: Path, fake: Fake) -> None:
    config = make_config(tmp_path, 20)
    run = start_job(config, faults={"row-3": "hang"}, children=True)
    wait_until(lambda: sum(journalled(config.out).values()) >= 3)
    run.send_signal(signal.SIGINT)
    time.sleep(0.3)
    run.send_signal(signal.SIGTERM)
    started = time.monotonic()
    run.communicate(timeout=30)
    assert run.returncode == 130
    assert time.monotonic() - started < 5
    wait_until(lambda: not processes_of(config.out))
    assert run_job(config).ok == 20


def test_a_signal_while_the_input_is_checked(tmp_path: Path, fake: Fake) -> None:
    config = make_config(tmp_path, 60_000)
    run = start_job(config)
    wait_until((config.out / "run.lock").exists)
    time.sleep(0.2)
    run.send_signal(signal.SIGTERM)
    said, _ = run.communicate(timeout=30)
    assert run.returncode == 4, said
    assert "Stopped before any row was made" in said
    assert not config.out.exists()


def test_a_stop_before_the_manifest_of_a_long_table_is_no_end(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row has ended, but nothing says so yet."""
    monkeypatch.setattr(job, "QUICK_MANIFEST_ROWS", 5)
    fake(slots=6, row_s=0.5)
    config = make_config(tmp_path, 6)

    def stop_after_the_last_row_was_pulled() -> None:
        wait_until(lambda: sum(journalled(config.out).values()) > 0)
        signal.raise_signal(signal.SIGTERM)

    threading.Thread(target=stop_after_the_last_row_was_pulled).start()
    summary = run_job(config)
    assert (summary.exit_status, summary.ok, summary.pending) == (ExitStatus.STOPPED, 6, 0)
    assert "The manifest is not written yet" in describe_summary(summary)
    assert not (config.out / "manifest.parquet").exists()
    fake()
    summary = run_job(config)
    assert (summary.exit_status, summary.ok, summary.made) == (ExitStatus.OK, 6, 0)


def test_rows_in_flight_are_dropped_when_they_take_too_long(tmp_path: Path, fake: Fake) -> None:
    fake(row_s=0.3)
    config = make_config(tmp_path, 30)
    timer = threading.Timer(1.5, signal.raise_signal, [signal.SIGINT])
    timer.start()
    summary = run_job(config, limits=Limits(stop_s=0.1))
    assert summary.exit_status == 4
    assert summary.failed == 0
    assert summary.pending > 20


def test_a_row_that_has_attempts_left_does_not_fail_by_a_stop(tmp_path: Path, fake: Fake) -> None:
    config = make_config(tmp_path, 30, attempts=3)
    run = start_job(config, row_s=0.05, faults={f"row-{n}": "silent" for n in range(30)})
    wait_until(lambda: sum(journalled(config.out).values()) > 3)
    run.send_signal(signal.SIGINT)
    said, _ = run.communicate(timeout=30)
    assert run.returncode == 4, said
    rows = read_manifest(config.out)
    assert {row["attempts"] for row in rows if row["status"] == "failed"} == {3}
    assert {row["status"] for row in rows} == {"failed", "pending"}


def test_a_live_run_is_not_joined(tmp_path: Path, fake: Fake) -> None:
    config = make_config(tmp_path, 60)
    run = start_job(config, row_s=0.05)
    wait_until(lambda: sum(journalled(config.out).values()) > 0)
    assert read_status(config.out)["state"] == "running"
    second = start_job(config)
    said, _ = second.communicate(timeout=30)
    assert second.returncode != 0
    assert "Another run works in" in said
    kill(run.pid)
    run.communicate()
    assert read_status(config.out)["state"] == "broken off"
    assert run_job(config).ok == 60


def test_what_a_crash_leaves_is_mended(tmp_path: Path, fake: Fake) -> None:
    """A torn journal line, a clip without its line, a clip cut short, a left temporary file, a lost clip."""
    config = make_config(tmp_path, 12)
    run_job(config)
    (segment,) = list_segments(config.out / "journal")
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(lines[:8]) + lines[8][:20])
    (config.out / clip_path("row-2")).write_bytes(b"RIFF")
    (config.out / clip_path("row-3")).unlink()
    (segment.parent / "tmp" / segment.stem).mkdir(parents=True)
    (segment.parent / "tmp" / segment.stem / "0").write_bytes(b"half a clip")
    (config.out / ".manifest.parquet.tmp").write_bytes(b"half a manifest")
    (config.out / ".run.json.17.tmp").write_bytes(b"half a run.json")
    summary = run_job(config)
    assert (summary.ok, summary.made) == (12, 6)
    assert not list(config.out.glob("journal/*/tmp/*/*"))
    assert not list(config.out.glob(".*"))
    assert snapshot(config.out) == uninterrupted(tmp_path, 12)


def test_clips_that_are_gone_are_pending_when_a_run_ends_early(tmp_path: Path, fake: Fake) -> None:
    config = make_config(tmp_path, 12)
    run_job(config)
    for number in range(3):
        (config.out / clip_path(f"row-{number}")).unlink()
    run = start_job(config, start_s=60)
    wait_until(lambda: bool(processes_of(config.out)))
    run.send_signal(signal.SIGTERM)
    said, _ = run.communicate(timeout=30)
    assert run.returncode == 4, said
    assert [row["status"] for row in read_manifest(config.out)] == ["pending"] * 3 + ["ok"] * 9
    fake(fail_start="no")
    with pytest.raises(CannotContinueError):
        run_job(config)
    assert read_status(config.out)["pending"] == 3


def test_changed_rows_are_made_anew(tmp_path: Path, fake: Fake) -> None:
    rows = make_rows(6)
    config = make_config(tmp_path, rows)
    run_job(config)
    rows[2]["text"] = "Other words."
    rows[3]["text"] = "Other words."
    rows.append({"id": "new", "text": "A new row.", "speaker": "vivian"})
    rows.insert(0, rows.pop())  # order does not matter
    fake(faults={"row-3": "empty"})
    summary = run_job(make_config(tmp_path, rows))
    assert (summary.ok, summary.failed, summary.made) == (6, 1, 3)
    fake(faults={"row-3": "empty"})
    assert snapshot(config.out) == uninterrupted(tmp_path, rows)
    assert not (config.out / clip_path("row-3")).exists(), "the clip of the old words is still there"


def test_changed_settings_are_refused_by_name_or_mixed_knowingly(tmp_path: Path, fake: Fake) -> None:
    config = make_config(tmp_path, 4, limit=2)
    run_job(config)
    made = {row["id"]: row["fingerprint"] for row in read_manifest(config.out)}
    warmer = make_config(tmp_path, 4, temperature=0.5)
    with pytest.raises(UsageError, match=r"temperature was not given, and is 0.5 now.*--allow-mixed"):
        run_job(warmer)
    mixed = make_config(tmp_path, 4, temperature=0.5, allow_mixed=True)
    assert run_job(mixed).made == 2
    rows = {row["id"]: row["fingerprint"] for row in read_manifest(config.out)}
    assert {row_id: rows[row_id] for row_id in made} == made
    assert len(set(rows.values())) == 4
    assert run_job(make_config(tmp_path, 4, temperature=0.5)).made == 0  # the folder stays known as mixed


def test_limits_of_checks_are_settings_too_and_kept_clips_keep_their_verdict(tmp_path: Path, fake: Fake) -> None:
    rows = make_rows(4)
    fake(faults={"row-1": "noise"})
    config = make_config(tmp_path, rows, limit=2, checks={"noise_flatness": None})
    assert run_job(config).ok == 2
    other = {"too_long_factor": 0.1, "too_long_floor_s": 0.1}
    with pytest.raises(UsageError, match=r'checks was {"noise_flatness": null}, and is {"too_long_factor".*--allow'):
        run_job(make_config(tmp_path, rows, checks=other))
    summary = run_job(make_config(tmp_path, rows, checks=other, allow_mixed=True))
    assert (summary.made, summary.ok, summary.reasons) == (2, 2, {"too_long_for_text": 2})
    assert json.loads((config.out / "run.json").read_text())["mixed"]


def test_another_number_of_gpus_order_layout_and_machine_change_nothing(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped on three devices, moved, and ended on one, from two files in another order."""
    rows = make_rows(150)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    config = make_config(tmp_path, rows, device="cuda")
    run = start_job(config, row_s=0.05)
    wait_until(lambda: sum(journalled(config.out).values()) > 20)
    run.send_signal(signal.SIGTERM)
    said, _ = run.communicate(timeout=60)
    assert run.returncode == 4, said
    assert len(list(config.out.glob("journal/w*"))) == 3
    made = sum(journalled(config.out).values())

    moved = tmp_path / "elsewhere"
    moved.mkdir()
    config.out.rename(moved / "out")
    tables = [
        write_table(moved / f"{number}.jsonl", part) for number, part in enumerate((rows[:40:-1], rows[40::-1]), 1)
    ]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-7")
    config = config.model_copy(update={"data": tuple(map(str, tables)), "out": moved / "out"})
    summary = run_job(config)
    assert (summary.ok, summary.made) == (150, 150 - made)
    assert set(journalled(config.out).values()) == {1}
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    found, expected = snapshot(config.out), uninterrupted(tmp_path, rows)
    for row_id, facts in expected.items():
        assert found[row_id][1:] == facts[1:]  # all but its place in the input


def test_overwrite_starts_over(tmp_path: Path, fake: Fake) -> None:
    fake(faults={"row-1": "silent"})
    config = make_config(tmp_path, 6, keep_failed_audio=True)
    run_job(config)
    mine = [config.out / "notes.txt", config.out / "quarantine" / "notes.txt"]
    for file in mine:
        file.write_text("mine")
    assert len(list(config.out.glob("quarantine/*/*.wav"))) == 1
    fake()
    summary = run_job(make_config(tmp_path, 3, overwrite=True, temperature=0.5))
    assert (summary.rows, summary.made) == (3, 3)
    assert len(list(config.out.rglob("*.wav"))) == 3
    assert all(file.exists() for file in mine)


def test_a_journal_of_somebody_else_is_not_swept(tmp_path: Path, fake: Fake) -> None:
    config = make_config(tmp_path, 2)
    diary = config.out / "journal" / "2026" / "tmp" / "monday.txt"
    diary.parent.mkdir(parents=True)
    diary.write_text("dear diary")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match=r"a folder `journal` that no run wrote \(2026, …\)"):
            run_job(config.model_copy(update={"overwrite": overwrite}))
    assert diary.exists()


def test_a_full_disk_stops_the_run(tmp_path: Path, fake: Fake) -> None:
    """On a file system of 1 MB where one may be mounted; elsewhere the worker's disk says that it is full."""
    config = make_config(tmp_path, 60)
    config.out.mkdir()
    mount = f"mount -t tmpfs -o size=1m none {config.out}"
    program = (
        "import sys, soundfile; from tts_batch.config import JobConfig; from tts_batch.run.job import run_job\n"
        "from tts_batch.errors import CannotContinueError\n"
        "config = JobConfig.model_validate_json(sys.argv[1])\n"
        "try: run_job(config)\n"
        "except CannotContinueError as error: print(error)\n"
        "clips = list(config.out.glob('*/*.wav'))\n"
        "print(len(clips), {soundfile.info(str(clip)).frames > 0 for clip in clips})\n"
    )
    command = [sys.executable, "-c", program, config.model_dump_json()]
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True).returncode:
        fake(full_after=20)
    else:
        command = ["unshare", "-rm", "sh", "-c", f"{mount} && {shlex.join(command)}"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    said, clips = run.stdout.strip().splitlines()[-2:]
    assert "full. Make room; the same command resumes" in said, run.stdout + run.stderr
    assert int(clips.split()[0]) > 3
    assert clips.endswith("{True}")
