"""Whole runs with real worker processes: what ends ok, what fails and why, and that each row ends once."""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile

from tests.run.support import journalled, make_config, make_rows, processes_of, read_manifest, snapshot
from tts_batch.config import JobConfig
from tts_batch.errors import CannotContinueError, ExitStatus, UsageError
from tts_batch.ipc.messages import RowRequest
from tts_batch.plan.planner import Plan, PlannedRow, iter_planned
from tts_batch.plan.seeds import derive_seed
from tts_batch.run import job, launchers, worker_process
from tts_batch.run.job import Limits, read_status, run_job
from tts_batch.run.row_requests import row_request
from tts_batch.store.clips import clip_path
from tts_batch.store.manifest import Totals, write_manifests

Fake = Callable[..., None]
SHORT = Limits(start_s=20, stall_s=2.0, stall_frame_s=0.0, close_s=2.0, stop_s=1.0)


def test_a_run(tmp_path: Path, fake: Fake) -> None:
    config = make_config(tmp_path, [{**row, "score": n} for n, row in enumerate(make_rows(12))], save_codes=True)
    summary = run_job(config)
    assert (summary.exit_status, summary.ok, summary.failed, summary.made) == (ExitStatus.OK, 12, 0, 12)
    assert summary.audio_s == pytest.approx(sum(row["duration_s"] for row in read_manifest(config.out)))
    for n, row in enumerate(read_manifest(config.out)):
        assert (row["row_index"], row["id"], row["score"], row["status"]) == (n, f"row-{n}", n, "ok")
        info = soundfile.info(config.out / row["audio"])
        assert (info.samplerate, info.subtype, info.duration) == (24_000, "PCM_16", pytest.approx(row["duration_s"]))
        assert np.load(config.out / row["codes"]).shape == (row["num_frames"], 16)
        assert (row["attempts"], row["attempt_seeds"]) == (1, [row["seed"]])
        assert (row["engine"], row["runner"], row["model"]) == ("tests.fake_engine:create", "fake", "tiny-random")
    assert not (config.out / "run.lock").exists()
    run = json.loads((config.out / "run.json").read_text())
    assert (run["state"], run["summary"]["ok"], run["versions"]["python"]) == ("finished", 12, sys.version.split()[0])
    assert [engine["runner"] for engine in run["engines"]] == ["fake"]


def test_this_process_never_loads_torch() -> None:
    """In a process of its own: others in this one may."""
    program = "import sys, tts_batch.run.job; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_the_same_command_again_makes_nothing_and_starts_nothing(tmp_path: Path, fake: Fake) -> None:
    config = make_config(tmp_path)
    run_job(config)
    before = snapshot(config.out)
    fake(fail_start="no worker may start")
    summary = run_job(config)
    assert (summary.exit_status, summary.ok, summary.made) == (ExitStatus.OK, 12, 0)
    assert snapshot(config.out) == before


def test_a_table_that_is_done_is_read_twice(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For the plan, and for what is done and the manifest together."""
    passes: list[JobConfig] = []

    def counted(config: JobConfig, plan: Plan) -> Iterator[PlannedRow]:
        passes.append(config)
        return iter_planned(config, plan)

    rows = [*make_rows(4), {"id": "clone", "text": "x", "ref_audio": "none.wav"}, {"id": "empty", "text": ""}]
    rows.append({"id": "designed", "text": "As described.", "instruct": "A calm voice."})
    fake(faults={"row-1": "silent"})
    config = make_config(tmp_path, rows, progress="plain")
    run_job(config)
    before = snapshot(config.out)
    capsys.readouterr()
    monkeypatch.setattr(job, "iter_planned", counted)
    summary = run_job(config)
    assert (summary.exit_status, summary.ok, summary.failed, summary.made) == (ExitStatus.SOME_FAILED, 4, 3, 0)
    assert "rows=7/7 audio_s_per_s=0.0 failed=3" in capsys.readouterr().err
    assert len(passes) == 1
    assert snapshot(config.out) == before
    (config.out / clip_path("row-3")).unlink()
    assert run_job(config).made == 1
    assert snapshot(config.out) == before


FAULTS = {
    "missing": "stalled",
    "non_finite": "non_finite",
    "empty": "empty_audio",
    "none": "empty_audio",
    "silent": "silent_output",
    "length": "codec_budget_exhausted",
    "at_budget": "codec_budget_exhausted",
    "over_budget": "engine_error",
    "loop": "repetitive_generation",
    "strange": "engine_error",
    "error": "ref_unreadable",
}
HARMLESS = ("late", "swapped", "repeated", "unknown", "loud")


def test_twelve_bad_rows_among_a_hundred(tmp_path: Path, fake: Fake) -> None:
    """Eleven of the engine's kinds and one of the table's; the five harmless kinds change nothing."""
    rows = make_rows(100)
    rows[50]["text"] = "  "
    faults = {f"row-{3 + 8 * n}": fault for n, fault in enumerate(FAULTS)}
    fake(faults=faults | {f"row-{4 + 8 * n}": fault for n, fault in enumerate(HARMLESS)})
    config = make_config(tmp_path, rows)
    summary = run_job(config, limits=Limits(answer_s=1.0, answer_frame_s=0.0))
    assert (summary.exit_status, summary.ok, summary.failed) == (ExitStatus.SOME_FAILED, 88, 12)
    found = {row["id"]: row["reason"] for row in read_manifest(config.out) if row["status"] == "failed"}
    assert found == {row_id: FAULTS[fault] for row_id, fault in faults.items()} | {"row-50": "empty_text"}
    assert all(count == 1 for count in journalled(config.out).values())
    assert len(list(config.out.glob("*/*.wav"))) == 88
    assert next(row for row in read_manifest(config.out) if row["id"] == "row-36")["clipped_samples"] > 0
    fake()
    clean = make_config(tmp_path, rows, out=tmp_path / "clean")
    run_job(clean)
    with_faults, without = snapshot(config.out), snapshot(clean.out)
    for row_id in (f"row-{4 + 8 * n}" for n in range(4)):  # late, swapped, repeated, unknown: the very same clips
        assert with_faults[row_id] == without[row_id]


@pytest.mark.parametrize(
    ("fault", "reason", "words"),
    [
        ("kill", "worker_crash", "about to die on row-3"),
        ("raise", "worker_crash", "CUDA"),
        ("oom", "out_of_memory", "CUDA"),
    ],
)
def test_rows_that_kill_workers_fail_alone(tmp_path: Path, fake: Fake, fault: str, reason: str, words: str) -> None:
    fake(faults={"row-3": fault, "row-9": fault})
    config = make_config(tmp_path, 12)
    summary = run_job(config)
    assert summary.exit_status == ExitStatus.SOME_FAILED
    failed = {row["id"]: row for row in read_manifest(config.out) if row["status"] == "failed"}
    assert {row_id: row["reason"] for row_id, row in failed.items()} == {"row-3": reason, "row-9": reason}
    assert words in failed["row-3"]["message"]
    assert ("SIGKILL" in failed["row-3"]["message"]) == (fault == "kill")
    assert all(count == 1 for count in journalled(config.out).values())
    assert run_job(config).made == 0  # the verdict stands
    for run in (1, 2):
        for row in pq.read_table(config.out / "failures.parquet").to_pylist():
            records = row["failed_attempts"]
            assert row["attempts"] == len(records) == len(row["attempt_seeds"]) >= 2 * run
            assert {record["reason"] for record in records} == {reason}
            assert [record["attempt"] for record in records] == list(range(1, len(records) + 1))
            assert [record["seed"] for record in records] == row["attempt_seeds"]
        if run == 1:
            run_job(config, retry=[reason])


def test_a_result_that_breaks_the_contract_fails_its_row_alone(tmp_path: Path, fake: Fake) -> None:
    fake(faults={"row-1": "no_array", "row-2": "no_effective", "row-3": "overwritten"})
    config = make_config(tmp_path, 6)
    assert run_job(config).reasons == {"engine_error": 2}
    rows = read_manifest(config.out)
    assert "audio is list, not a float32 array" in rows[1]["message"]
    assert "effective is None, not a mapping" in rows[2]["message"]
    audio, _ = soundfile.read(config.out / rows[3]["audio"])
    assert np.abs(audio).max() > 0.05, "its buffer was used again after it was returned"
    assert len(list(config.out.glob("journal/w0/*.jsonl"))) == 1  # the worker went on


@pytest.mark.parametrize("dies", ["mute", "mute_clip"])
def test_what_a_dead_process_had_journalled_is_done(tmp_path: Path, fake: Fake, dies: str) -> None:
    """A worker, or the clip process itself, dies between the line and the message about it."""
    fake(**{dies: str(tmp_path / "it-died")})
    config = make_config(tmp_path, 12)
    summary = run_job(config)
    assert (tmp_path / "it-died").exists()
    assert (summary.ok, summary.made) == (12, 12)
    assert set(journalled(config.out).values()) == {1}


def test_a_worker_whose_children_outlive_it_is_missed_at_once(tmp_path: Path, fake: Fake) -> None:
    """They hold its channel open, so that its end is not seen there."""
    fake(faults={"row-3": "kill_once"}, children=True, state=str(tmp_path))
    started = time.monotonic()
    assert run_job(make_config(tmp_path, 12), limits=Limits(stall_s=30, stall_frame_s=0.0)).ok == 12
    assert time.monotonic() - started < 25


def test_a_worker_that_cannot_be_killed_is_given_up(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a driver that waits for its device: its rows go to the others, and without others the run ends."""
    monkeypatch.setattr(launchers.os, "killpg", lambda pid, number: None)
    monkeypatch.setattr(worker_process, "REAP_S", 0.5)
    limits = replace(SHORT, gone_s=0.5)
    fake(faults={"row-1": "hang_once"}, state=str(tmp_path), row_s=0.02)
    with pytest.raises(CannotContinueError, match=r"No worker is left.*its process \d+ does not end"):
        run_job(make_config(tmp_path, 12, out=tmp_path / "alone"), limits=limits)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    fake(faults={"row-2": "hang_once"}, state=str(tmp_path), row_s=0.02)
    summary = run_job(make_config(tmp_path, 40, device="cuda"), limits=limits)
    assert (summary.exit_status, summary.ok) == (ExitStatus.OK, 40)
    assert "does not end" in capsys.readouterr().err


def test_a_hanging_row_is_found_stalled(tmp_path: Path, fake: Fake) -> None:
    fake(faults={"row-1": "hang"}, slots=2)
    config = make_config(tmp_path, 4)
    summary = run_job(config, limits=SHORT)
    assert (summary.ok, summary.reasons) == (3, {"stalled": 1})
    assert not processes_of(config.out)


def test_a_row_that_the_engine_loses_fails_alone_while_others_may_come_again(tmp_path: Path, fake: Fake) -> None:
    fake(faults={"row-1": "missing", "row-3": "silent_once"})
    config = make_config(tmp_path, 6, attempts=3)
    summary = run_job(config, limits=Limits(answer_s=0.5, answer_frame_s=0.0))
    assert (summary.ok, summary.reasons) == (5, {"stalled": 1})
    lost = read_manifest(config.out)[1]
    assert (lost["attempts"], lost["message"]) == (1, "The engine returned no result for it within 0.5 s, and went on.")
    assert all(count == 1 for count in journalled(config.out).values())
    assert len(list(config.out.glob("journal/w0/*.jsonl"))) == 1  # the worker went on
    fake()
    assert run_job(config, retry=["stalled"]).ok == 6


def test_nothing_is_lost_while_the_disk_holds_the_engine_back(tmp_path: Path, fake: Fake) -> None:
    """More rows than may wait for the disk, which takes far longer for them than an answer may take."""
    fake(fsync_s=0.2)
    config = make_config(tmp_path, 1_000)
    assert run_job(config, limits=Limits(answer_s=0.4, answer_frame_s=0.0)).ok == 1_000
    log = (config.out / "journal" / "w0" / "stderr.log").read_text()
    waits = re.search(r"of ([\d.]+) s, waited ([\d.]+) s for the engine and ([\d.]+) s for clip processes", log)
    assert waits is not None
    all_s, engine_s, paused_s = map(float, waits.groups())
    assert engine_s + paused_s <= all_s + 0.1


def test_an_attempt_is_answered_once(tmp_path: Path, fake: Fake) -> None:
    """A second answer comes while the first is examined, or just after; then the engine has no other row to make."""
    fake(faults={"row-5": "silent_twice"}, slots=1, calls=str(tmp_path / "calls"))
    config = make_config(tmp_path, 6, attempts=3)
    assert run_job(config).reasons == {"silent_output": 1}
    called = [line.split("\t")[0] for line in (tmp_path / "calls").read_text().splitlines()]
    assert called == [*(f"row-{n}" for n in range(6)), "row-5", "row-5"]
    assert read_manifest(config.out)[5]["attempts"] == 3
    log = (config.out / "journal" / "w0" / "stderr.log").read_text()
    assert log.count("ignored a result for 'row-5'") == 3


def test_a_row_that_is_lost_and_over_its_time_says_so(tmp_path: Path, fake: Fake) -> None:
    fake(faults={"row-1": "missing"})
    config = make_config(tmp_path, 2, attempts=3, row_time_limit=0.3)
    assert run_job(config).reasons == {"time_limit": 1}


def test_a_worker_that_dies_once_costs_nothing(tmp_path: Path, fake: Fake) -> None:
    fake(faults={"row-3": "kill_once", "row-8": "raise_once"})
    config = make_config(tmp_path, 12)
    summary = run_job(config)
    assert (summary.exit_status, summary.ok) == (ExitStatus.OK, 12)
    assert all(count == 1 for count in journalled(config.out).values())


def test_attempts_use_derived_seeds_but_never_change_a_given_one(tmp_path: Path, fake: Fake) -> None:
    rows = make_rows(4)
    rows[2]["seed"] = 7
    fake(faults={"row-1": "silent_once", "row-2": "silent_once", "row-3": "length"})
    config = make_config(tmp_path, rows, attempts=3)
    run_job(config)
    _, once, given, always = read_manifest(config.out)
    assert (once["status"], once["attempts"], once["seed"]) == ("ok", 2, once["attempt_seeds"][1])
    assert (given["status"], given["attempts"], given["attempt_seeds"]) == ("failed", 1, [7])
    assert (always["reason"], always["attempts"], len(set(always["attempt_seeds"]))) == ("codec_budget_exhausted", 3, 3)


def test_a_given_seed_is_changed_when_that_is_asked_for(tmp_path: Path, fake: Fake) -> None:
    rows = make_rows(2)
    rows[1]["seed"] = 7
    fake(faults={"row-1": "silent_once"})
    config = make_config(tmp_path, rows, attempts=2, retry_changes_seed=True)
    assert run_job(config).ok == 2
    given = read_manifest(config.out)[1]
    assert given["attempt_seeds"] == [7, derive_seed(0, "row-1", attempt=1, explicit=7)]
    greedy = make_config(tmp_path, 2, attempts=3, greedy=True, out=tmp_path / "greedy")
    fake(faults={"row-1": "silent"})
    run_job(greedy)
    assert [row["attempts"] for row in read_manifest(greedy.out)] == [1, 1]  # another seed would change nothing


def test_failures_tell_of_each_attempt(tmp_path: Path, fake: Fake) -> None:
    fake(faults={"row-1": "length", "row-2": "noise", "row-3": "none"})
    config = make_config(tmp_path, 4, attempts=2)
    run_job(config)
    length, noise, empty = pq.read_table(config.out / "failures.parquet").to_pylist()
    assert [record["attempt"] for record in length["failed_attempts"]] == [1, 2]
    assert [record["seed"] for record in length["failed_attempts"]] == length["attempt_seeds"]
    one, two = length["failed_attempts"]
    assert (one["reason"], one["finish_reason"]) == ("codec_budget_exhausted", "length")
    assert (one["num_frames"], two["num_frames"]) == (length["max_frames"],) * 2
    assert len(one["first_codes"]) == len(one["last_codes"]) > 5
    assert (one["distinct_codes"], one["repeat_lag"]) == (1, 1)  # this engine says one code over and over
    assert one["repeated_frames"] == len(one["first_codes"]) - 1
    assert one["tail_silence_s"] == pytest.approx(0, abs=0.05)
    assert [record["reason"] for record in noise["failed_attempts"]] == ["noise_output"] * 2
    assert json.loads(noise["checks"])["flatness"] > 0.5
    assert [record["reason"] for record in empty["failed_attempts"]] == ["empty_audio"] * 2


def test_checks_and_their_limits(tmp_path: Path, fake: Fake) -> None:
    config = make_config(tmp_path, 3, checks={"too_short_factor": 1.5})
    assert run_job(config).reasons == {"too_short_for_text": 3}
    with pytest.raises(UsageError, match="checks"):
        run_job(make_config(tmp_path, 3))
    fake(faults={"row-1": "noise"})
    free = make_config(tmp_path, 3, checks={"noise_flatness": None}, overwrite=True)
    assert run_job(free).ok == 3
    assert all(json.loads(row["checks"])["length_ratio"] > 0 for row in read_manifest(free.out))


def test_a_row_that_takes_too_long_is_ended(tmp_path: Path, fake: Fake) -> None:
    fake(faults={"row-1": "endless"}, row_s=0.01)
    config = make_config(tmp_path, 12, attempts=3, row_time_limit=0.4)
    assert run_job(config).reasons == {"time_limit": 1}
    row = read_manifest(config.out)[1]
    assert (row["attempts"], row["message"]) == (1, "It was not complete after 0.4 s.")


def test_a_device_side_assert_restarts_the_worker(tmp_path: Path, fake: Fake) -> None:
    """After it every row of that process would fail: none of them does, and only a row that asserts for ever fails."""
    fake(faults={"row-3": "assert_once", "row-8": "assert"})
    config = make_config(tmp_path, 12)
    assert run_job(config).reasons == {"worker_crash": 1}
    row = read_manifest(config.out)[8]
    assert "device-side assert" in row["message"]


def test_a_reference_that_leaks_fails(tmp_path: Path, fake: Fake) -> None:
    time_s = np.arange(60_000) / 24_000
    chirp = (0.3 * np.sin(2 * np.pi * (150 + 60 * time_s) * time_s)).astype(np.float32)
    soundfile.write(tmp_path / "ref.wav", chirp, 24_000)
    clone = {"text": "Hello there, how are you?", "ref_audio": "ref.wav", "ref_text": "some words"}
    fake(faults={"b": "leak"})
    config = make_config(tmp_path, [{"id": "a", **clone}, {"id": "b", **clone}])
    run_job(config)
    clean, leak = read_manifest(config.out)
    assert (clean["status"], leak["reason"]) == ("ok", "ref_leak")
    assert json.loads(clean["checks"])["ref_correlation"] < 0.5


def test_failed_audio_is_kept_when_asked_for(tmp_path: Path, fake: Fake) -> None:
    fake(faults={"row-1": "at_budget_once", "row-2": "non_finite", "row-3": "empty"})
    config = make_config(tmp_path, 4, attempts=2, keep_failed_audio=True)
    assert run_job(config).ok == 2
    kept = sorted(path.name for path in config.out.glob("quarantine/*/*"))
    assert kept == ["row-1.1.wav", "row-2.1.wav", "row-2.2.wav"]
    assert soundfile.info(next(config.out.glob("quarantine/*/row-2.2.wav"))).frames > 0


def test_a_clip_that_cannot_be_encoded_fails_alone(tmp_path: Path, fake: Fake) -> None:
    fake(faults={"row-1": "odd_rate"}, calls=str(tmp_path / "calls"))
    config = make_config(tmp_path, 6, format="opus", attempts=2)
    assert run_job(config).ok == 5
    failed = next(row for row in read_manifest(config.out) if row["status"] == "failed")
    assert (failed["id"], failed["reason"]) == ("row-1", "write_failed")
    assert "22050 Hz" in failed["message"]
    assert len((tmp_path / "calls").read_text().splitlines()) == 6, "a row was made again"


def test_an_engine_of_one_s_own_needs_no_checkpoint(tmp_path: Path, fake: Fake) -> None:
    fake()
    rows = [
        {"text": "One."},
        {"text": "Two.", "speaker": "anyone"},
        {"text": "Three.", "instruct": "softly"},
    ]
    config = make_config(tmp_path, rows, model=None)
    assert run_job(config).ok == 3
    first, second, third = read_manifest(config.out)
    assert [row["task"] for row in (first, second, third)] == ["custom_voice", "custom_voice", "voice_design"]
    assert first["model"] == "tests.fake_engine:create"


def test_an_engine_that_cannot_start_ends_the_run(tmp_path: Path, fake: Fake) -> None:
    fake(fail_start="no such device here")
    config = make_config(tmp_path)
    with pytest.raises(CannotContinueError, match=r"cannot start.*no such device here"):
        run_job(config)
    assert [row["status"] for row in read_manifest(config.out)] == ["pending"] * 12
    assert read_status(config.out)["state"] == "failed"
    with pytest.raises(CannotContinueError, match="factory"):
        run_job(make_config(tmp_path, engine="tests.fake_engine:nothing", overwrite=True))


def test_an_engine_that_starts_too_slowly_ends_the_run(tmp_path: Path, fake: Fake) -> None:
    fake(start_s=60)
    with pytest.raises(CannotContinueError, match="not open after 1 s"):
        run_job(make_config(tmp_path), limits=Limits(start_s=1.0))


def test_workers_that_die_without_end_are_given_up(tmp_path: Path, fake: Fake) -> None:
    fake(faults={f"row-{n}": "kill" for n in range(12)})
    with pytest.raises(CannotContinueError, match=r"No worker is left.*SIGKILL"):
        run_job(make_config(tmp_path), limits=Limits(consecutive_poison_rows=2))


def test_an_engine_that_never_pulls_a_row_is_given_up(tmp_path: Path, fake: Fake) -> None:
    fake(fail_step="no kernel image")
    config = make_config(tmp_path)
    with pytest.raises(CannotContinueError, match=r"No worker is left.*no kernel image"):
        run_job(config, limits=Limits(consecutive_deaths=2))
    assert [row["status"] for row in read_manifest(config.out)] == ["pending"] * 12


def test_memory_does_not_grow_with_the_table(tmp_path: Path, fake: Fake) -> None:
    program = (
        "import sys, resource; from tts_batch.config import JobConfig; from tts_batch.run.job import run_job\n"
        "summary = run_job(JobConfig.model_validate_json(sys.argv[1]))\n"
        "kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)\n"
        "print(summary.ok, *(resource.getrusage(kind).ru_maxrss // 1024 for kind in kinds))"
    )
    fake(slots=64)
    peaks = []
    for count in (2_000, 20_000):
        rows = ({"id": f"row-{n}", "text": f"Row {n}.", "speaker": "vivian"} for n in range(count))
        config = make_config(tmp_path, rows, out=tmp_path / str(count))
        command = [sys.executable, "-c", program, config.model_dump_json()]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        ok, *megabytes = map(int, answer.stdout.split())
        assert ok == count
        peaks.append(megabytes)
    assert all(large < small + 40 for small, large in zip(*peaks, strict=True)), peaks


def test_without_progress_only_what_went_wrong_is_said(
    tmp_path: Path, fake: Fake, capfd: pytest.CaptureFixture[str]
) -> None:
    fake(faults={"row-3": "kill_once"})
    run_job(make_config(tmp_path, [{**row, "txet": "a near miss"} for row in make_rows(12)]))
    (line,) = capfd.readouterr().err.splitlines()
    assert "SIGKILL" in line
    assert line.endswith("reassigning its rows.")


def test_an_engine_that_does_not_close_is_ended(tmp_path: Path, fake: Fake) -> None:
    fake(close_s=600, children=True)
    config = make_config(tmp_path)
    assert run_job(config, limits=SHORT).exit_status == ExitStatus.OK
    assert not processes_of(config.out)


def test_the_manifest_is_written_while_engines_close(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(close_s=3.0)
    config = make_config(tmp_path)
    at_work = []

    def write(*arguments: Any) -> Totals:
        at_work.extend(processes_of(config.out))
        return write_manifests(*arguments)

    monkeypatch.setattr(job, "write_manifests", write)
    summary = run_job(config)
    assert (summary.ok, summary.wall_s > 3.0) == (12, True)
    assert at_work
    assert not processes_of(config.out)


def test_an_end_while_engines_close_leaves_no_process(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(close_s=600, children=True)
    config = make_config(tmp_path)

    def interrupt(*arguments: Any) -> Totals:
        assert processes_of(config.out)
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "write_manifests", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_job(config)
    assert not processes_of(config.out)
    assert read_status(config.out)["state"] == "broken off"
    monkeypatch.undo()
    fake()
    assert run_job(config).made == 0


def test_an_engine_may_take_a_thousand_large_rows_at_once(tmp_path: Path, fake: Fake) -> None:
    """More than the channel holds in either direction: nobody waits for the other."""
    fake(slots=1_000)
    rows = [{**row, "text": "Yes.", "instruct": "In a calm voice. " * 80} for row in make_rows(1_200)]
    config = make_config(tmp_path, rows)
    assert run_job(config).ok == 1_200
    assert len(list(config.out.glob("journal/w0/*.jsonl"))) == 1  # it was not ended for taking no message


def test_two_devices_share_a_table(tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,GPU-17")
    fake(row_s=0.02)
    config = make_config(tmp_path, 40, device="cuda")
    assert run_job(config).ok == 40
    assert all(count == 1 for count in journalled(config.out).values())
    made = [len(path.read_bytes().splitlines()) for path in sorted(config.out.glob("journal/w*/*.jsonl"))]
    assert len(made) == 2
    assert min(made) > 5


def test_split_placement_gives_each_worker_a_pair(tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,GPU-17,2,3,4")
    fake(row_s=0.02)
    config = make_config(tmp_path, 40, device="cuda", placement="split")
    with pytest.raises(UsageError, match="needs pairs of devices, and 5 cannot be paired"):
        run_job(config)
    assert not config.out.exists()
    assert run_job(config.model_copy(update={"gpus": (0, 1, 4, 2)})).ok == 40
    engines = json.loads((config.out / "run.json").read_text())["engines"]
    assert {engine["placement"] for engine in engines} == {"split"}
    assert sorted(engine["visible"] for engine in engines) == ["0,GPU-17", "4,2"]


def test_a_mixed_table_runs_one_model_after_another(tmp_path: Path, fake: Fake) -> None:
    rows: list[dict[str, Any]] = make_rows(6)
    for row in rows[::2]:
        del row["speaker"]
        row["instruct"] = "An old man with a calm voice."
    config = make_config(tmp_path, rows)
    assert run_job(config).ok == 6
    assert [row["task"] for row in read_manifest(config.out)] == ["voice_design", "custom_voice"] * 3
    assert len(list(config.out.glob("journal/w0/*.jsonl"))) == 2


def test_references_as_bytes_reach_the_engine(tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    from tests.worker.test_references import wav_bytes

    table = pa.table(
        {"id": ["a", "b"], "text": ["Hello there."] * 2, "ref_audio": [wav_bytes()] * 2, "ref_text": ["some words"] * 2}
    )
    pq.write_table(table, tmp_path / "clone.parquet")
    config = make_config(tmp_path, data=(str(tmp_path / "clone.parquet"),))
    under_way: list[RowRequest] = []
    monkeypatch.setattr(job, "row_request", lambda *args: under_way.append(row_request(*args)) or under_way[-1])
    assert run_job(config).ok == 2
    assert [len(pickle.dumps(row)) < 2_000 for row in under_way] == [True, True], "recordings stay in the spool"
    assert all(row["ref_audio"].startswith("sha256:") for row in read_manifest(config.out))
    assert not (config.out / "journal" / "references").exists()


def test_a_folder_in_use_and_a_useless_call_are_refused(tmp_path: Path, fake: Fake) -> None:
    config = make_config(tmp_path)
    with pytest.raises(UsageError, match="--gpus"):
        run_job(config.model_copy(update={"launcher": "ray", "gpus": (0,)}))
    with pytest.raises(UsageError, match="no rows"):
        (tmp_path / "empty.csv").write_text("id,text\n")
        run_job(make_config(tmp_path, data=(str(tmp_path / "empty.csv"),)))
    assert not config.out.exists()
    for folder in (tmp_path, tmp_path / "empty.csv"):
        with pytest.raises(UsageError, match="not a run folder"):
            read_status(folder)


def test_a_run_folder_may_lie_in_the_folder_of_its_tables(tmp_path: Path, fake: Fake) -> None:
    (tmp_path / "data").mkdir()
    make_config(tmp_path / "data", 4)
    config = make_config(tmp_path, 1, data=(str(tmp_path / "data"),), out=tmp_path / "data" / "wavs")
    assert run_job(config).ok == 4
    assert (run_job(config).rows, run_job(config).made) == (4, 0)


def test_what_a_run_writes_is_no_table_for_it(tmp_path: Path, fake: Fake) -> None:
    """Overwriting would take its table away with the clips; going on would leave all other rows out."""
    config = make_config(tmp_path, 3)
    run_job(config)
    before = snapshot(config.out)
    for name in ("manifest.parquet", "failures.parquet", "", "*.parquet"):
        for overwrite in (False, True):
            again = config.model_copy(update={"data": (str(config.out / name),), "overwrite": overwrite})
            with pytest.raises(UsageError, match=r"\.parquet is written by the run itself.*tts-batch retry"):
                run_job(again)
    assert snapshot(config.out) == before
    table = str(config.out / "manifest.parquet")
    assert run_job(config.model_copy(update={"data": (table,), "out": tmp_path / "other"})).ok == 3


def test_a_damaged_run_json_is_named_and_can_be_removed(tmp_path: Path, fake: Fake) -> None:
    config = make_config(tmp_path)
    run_job(config)
    (config.out / "run.json").write_text("{")
    with pytest.raises(UsageError, match=r"run\.json is damaged: remove it"):
        run_job(config)
    (config.out / "run.json").unlink()
    summary = run_job(config)
    assert (summary.ok, summary.made) == (12, 0)


def test_status_counts_from_the_journal(tmp_path: Path, fake: Fake) -> None:
    rows = make_rows(5)
    rows[1]["text"] = ""
    fake(faults={"row-2": "silent"})
    config = make_config(tmp_path, rows)
    run_job(config)
    status = read_status(config.out)
    assert (status["state"], status["rows"], status["ok"], status["failed"]) == ("finished", 5, 3, 2)
    assert (status["pending"], os.fspath(config.out)) == (0, str(tmp_path / "out"))
