"""Rows whose text is split: whole runs with real workers, and what becomes of a piece that fails."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile

from tests.fake_engine import speak
from tests.run.support import (
    journalled,
    kill,
    make_config,
    make_rows,
    processes_of,
    read_manifest,
    snapshot,
    start_job,
    wait_until,
)
from tts_batch.engine.request import SamplingParams, SpeechRequest, SpeechResult
from tts_batch.errors import UsageError
from tts_batch.ipc.messages import CheckLimits
from tts_batch.plan.seeds import derive_seed
from tts_batch.plan.split import split_text
from tts_batch.run.job import Limits, run_job
from tts_batch.run.row_requests import piece_id
from tts_batch.store.clips import clip_path
from tts_batch.worker.finish import examine_joined, join

Fake = Callable[..., None]
RATE = 24_000
LONG = "This is a sentence of some forty characters. " * 6
TEXTS = split_text(LONG, 100)  # three pieces of two sentences


def rows_with_one_long(count: int = 4, **columns: Any) -> list[dict[str, Any]]:
    rows = make_rows(count)
    rows[1] |= {"text": LONG, **columns}
    return rows


def pieces_of(row: dict[str, Any]) -> list[dict[str, Any]]:
    return list(json.loads(row["checks"])["pieces"])


def calls(file: Path) -> dict[str, list[int]]:
    """The seeds that the engine was given, by request."""
    found: dict[str, list[int]] = {}
    for line in file.read_text().splitlines():
        request_id, seed = line.rsplit("\t", 1)
        found.setdefault(request_id, []).append(int(seed))
    return found


def test_b06_pieces_are_joined_in_order_with_a_pause(tmp_path: Path, fake: Fake) -> None:
    fake(calls=str(tmp_path / "calls"), slots=3)
    config = make_config(tmp_path, rows_with_one_long(), split_text=100, split_pause_s=0.5, save_codes=True)
    assert run_job(config).ok == 4
    short, long, *_ = read_manifest(config.out)
    assert (short["num_pieces"], long["num_pieces"], long["text"]) == (1, 3, LONG)
    seeds = [derive_seed(0, "row-1", piece=piece) for piece in range(3)]
    assert {piece_id("row-1", piece): [seed] for piece, seed in enumerate(seeds)}.items() <= calls(
        tmp_path / "calls"
    ).items()
    said = [speak(SpeechRequest("", text, "custom_voice", seed, 10_000, SamplingParams(), speaker="vivian"))
            for text, seed in zip(TEXTS, seeds, strict=True)]  # fmt: skip
    pause = np.zeros(RATE // 2, np.float32)
    expected = np.concatenate([said[0].audio, pause, said[1].audio, pause, said[2].audio])
    audio, _ = soundfile.read(config.out / long["audio"], dtype="float32")
    assert audio == pytest.approx(expected, abs=1e-4)
    assert long["duration_s"] == pytest.approx(expected.size / RATE)
    assert long["num_frames"] == sum(result.num_frames for result in said) < long["max_frames"]
    assert np.array_equal(np.load(config.out / long["codes"]), np.concatenate([result.codes for result in said]))
    assert (long["seed"], long["attempt_seeds"], long["eos"], long["finish_reason"]) == (
        seeds[0],
        [seeds[0]],
        True,
        "stop",
    )
    told = pieces_of(long)
    assert [piece["text"] for piece in told] == TEXTS
    assert [piece["seed"] for piece in told] == seeds
    assert [piece["num_frames"] for piece in told] == [result.num_frames for result in said]
    for piece, result in zip(told, said, strict=True):
        start = round(piece["start_s"] * RATE)
        assert audio[start : start + round(piece["duration_s"] * RATE)] == pytest.approx(result.audio, abs=1e-4)
    assert json.loads(long["checks"])["inner_silence_s"] < 0.1, "a pause that was asked for is no finding"


def test_rows_that_fit_are_as_without(tmp_path: Path, fake: Fake) -> None:
    plain = make_config(tmp_path, rows_with_one_long())
    run_job(plain)
    split = make_config(tmp_path, rows_with_one_long(), split_text=100, out=tmp_path / "split")
    run_job(split)
    before, after = snapshot(plain.out), snapshot(split.out)
    assert [row_id for row_id in before if before[row_id] != after[row_id]] == ["row-1"]
    assert "pieces" not in json.loads(read_manifest(split.out)[0]["checks"])
    with pytest.raises(UsageError, match=r"split_text was not given, and is 100 now"):
        run_job(make_config(tmp_path, rows_with_one_long(), split_text=100))


def test_one_failed_piece_fails_the_row_with_its_reason(tmp_path: Path, fake: Fake) -> None:
    fake(faults={piece_id("row-1", 1): "length"}, calls=str(tmp_path / "calls"), slots=1)
    config = make_config(tmp_path, rows_with_one_long(), split_text=100, attempts=2)
    summary = run_job(config)
    assert (summary.ok, summary.reasons) == (3, {"codec_budget_exhausted": 1})
    row = read_manifest(config.out)[1]
    assert row["message"].startswith("Piece 2 of 3: No end of speech within the budget")
    assert (row["audio"], row["attempts"], row["num_pieces"], row["finish_reason"]) == (None, 2, 3, "length")
    assert not (config.out / clip_path("row-1")).exists()
    asked = calls(tmp_path / "calls")
    assert len(asked[piece_id("row-1", 0)]) == 1, "a good piece is made once"
    assert asked[piece_id("row-1", 1)] == [derive_seed(0, "row-1", attempt=attempt, piece=1) for attempt in (0, 1)]
    (failed,) = pq.read_table(config.out / "failures.parquet").to_pylist()
    assert [(record["piece"], record["attempt"]) for record in failed["failed_attempts"]] == [(2, 1), (2, 2)]
    assert [record["seed"] for record in failed["failed_attempts"]] == asked[piece_id("row-1", 1)]


def test_what_is_left_of_a_failed_row_is_not_made(tmp_path: Path, fake: Fake) -> None:
    """Its later pieces are not pulled, and what the engine has of it is cancelled."""
    faults = {piece_id("row-1", 0): "endless", piece_id("row-1", 1): "error"}
    fake(faults=faults, calls=str(tmp_path / "calls"), slots=2)
    rows = rows_with_one_long(30)
    config = make_config(tmp_path, rows, split_text=60)
    assert run_job(config).reasons == {"ref_unreadable": 1}
    assert journalled(config.out)["row-1"] == 1
    assert len([name for name in calls(tmp_path / "calls") if name.startswith("row-1\x1f")]) < 6
    assert "ignored a result" not in (config.out / "journal" / "w0" / "stderr.log").read_text()


def test_a_piece_gets_another_attempt_and_the_others_stay(tmp_path: Path, fake: Fake) -> None:
    fake(faults={piece_id("row-1", 2): "silent_once"}, calls=str(tmp_path / "calls"))
    config = make_config(tmp_path, rows_with_one_long(), split_text=100, attempts=3, keep_failed_audio=True)
    assert run_job(config).ok == 4
    row = read_manifest(config.out)[1]
    assert row["attempt_seeds"] == [derive_seed(0, "row-1", attempt=attempt) for attempt in (0, 1)]
    seeds = [piece["seed"] for piece in pieces_of(row)]
    assert seeds == [derive_seed(0, "row-1", piece=0), derive_seed(0, "row-1", piece=1),
                     derive_seed(0, "row-1", attempt=1, piece=2)]  # fmt: skip
    assert {name: len(asked) for name, asked in calls(tmp_path / "calls").items() if "\x1f" in name} == {
        piece_id("row-1", 0): 1, piece_id("row-1", 1): 1, piece_id("row-1", 2): 2}  # fmt: skip
    assert [path.name for path in config.out.glob("quarantine/*/*")] == ["row-1.piece3.1.wav"]


def test_a_given_seed_and_a_retry(tmp_path: Path, fake: Fake) -> None:
    fake(faults={piece_id("row-1", 1): "length"}, calls=str(tmp_path / "calls"))
    config = make_config(tmp_path, rows_with_one_long(seed=7), split_text=100, attempts=3)
    assert run_job(config).failed == 1
    assert calls(tmp_path / "calls")[piece_id("row-1", 0)] == [7]
    assert calls(tmp_path / "calls")[piece_id("row-1", 1)] == [derive_seed(0, "row-1", explicit=7, piece=1)]
    drawn = make_config(tmp_path, rows_with_one_long(), split_text=100, out=tmp_path / "drawn")
    assert run_job(drawn).failed == 1
    fake(calls=str(tmp_path / "again"))
    assert run_job(drawn, retry=["codec_budget_exhausted"]).ok == 4
    second = {piece_id("row-1", piece): [derive_seed(0, "row-1", attempt=1, piece=piece)] for piece in range(3)}
    assert calls(tmp_path / "again") == second


@pytest.mark.parametrize("fault", ["missing", "kill", "repeated", "late", "unknown"])
def test_pieces_are_held_against_what_was_asked(tmp_path: Path, fake: Fake, fault: str) -> None:
    fake(faults={piece_id("row-1", 1): fault})
    config = make_config(tmp_path, rows_with_one_long(), split_text=100)
    reasons = {"missing": {"stalled": 1}, "kill": {"worker_crash": 1}}
    assert run_job(config, limits=Limits(answer_s=1.0, answer_frame_s=0.0)).reasons == reasons.get(fault, {})
    assert set(journalled(config.out).values()) == {1}
    assert {row["id"]: row["num_pieces"] for row in read_manifest(config.out)}["row-1"] == 3


def test_the_time_limit_is_the_row_s(tmp_path: Path, fake: Fake) -> None:
    fake(faults={piece_id("row-1", 2): "endless"}, row_s=0.01)
    config = make_config(tmp_path, rows_with_one_long(), split_text=100, attempts=3, row_time_limit=0.5)
    assert run_job(config).reasons == {"time_limit": 1}
    assert read_manifest(config.out)[1]["message"] == "Piece 3 of 3: It was not complete after 0.5 s."


def test_no_piece_of_a_row_is_made_after_its_time_limit(tmp_path: Path, fake: Fake) -> None:
    """Also where the engine ends a piece as if it was not aborted."""
    faults = {piece_id("row-1", piece): "deaf" for piece in range(6)}
    fake(faults=faults, row_s=0.3, slots=1, calls=str(tmp_path / "calls"))
    config = make_config(tmp_path, rows_with_one_long(2), split_text=60, row_time_limit=0.5)
    assert run_job(config).reasons == {"time_limit": 1}
    number = len([name for name in calls(tmp_path / "calls") if name.startswith("row-1\x1f")])
    assert number < 6
    unfinished = {f"Piece {first} of 6: It was not complete after 0.5 s." for first in (number, number + 1)}
    assert read_manifest(config.out)[1]["message"] in unfinished


def test_a_clip_that_fails_as_a_whole_is_tried_again_as_a_whole(tmp_path: Path, fake: Fake) -> None:
    fake(edges_s=[2.8, 2.9], calls=str(tmp_path / "calls"))
    config = make_config(tmp_path, rows_with_one_long(2), split_text=100, attempts=2)
    assert run_job(config).reasons == {"long_silence": 1}
    row = read_manifest(config.out)[1]
    assert row["message"].startswith("Seconds of continuous silence: 5.70, limit 5 (--check long_silence_s=")
    (failed,) = pq.read_table(config.out / "failures.parquet").to_pylist()
    assert [(record["piece"], record["attempt"]) for record in failed["failed_attempts"]] == [(None, 1), (None, 2)]
    assert {len(asked) for name, asked in calls(tmp_path / "calls").items() if "\x1f" in name} == {2}


def test_a_row_of_many_pieces_is_not_stalled_while_they_come(tmp_path: Path, fake: Fake) -> None:
    fake(row_s=0.4, slots=1)
    config = make_config(tmp_path, rows_with_one_long(2), split_text=60)
    patient = Limits(stall_s=1.5, stall_frame_s=0.0)
    assert run_job(config, limits=patient).ok == 2
    fake(faults={piece_id("row-1", 3): "hang"})
    stuck = make_config(tmp_path, rows_with_one_long(2), split_text=60, out=tmp_path / "stuck")
    assert run_job(stuck, limits=patient).reasons == {"stalled": 1}


def test_each_take_has_draws_of_its_own(tmp_path: Path, fake: Fake) -> None:
    config = make_config(tmp_path, rows_with_one_long(2), split_text=100, takes=2)
    assert run_job(config).ok == 4
    takes = {row["id"]: [piece["seed"] for piece in pieces_of(row)] for row in read_manifest(config.out)[2:]}
    assert takes == {
        name: [derive_seed(0, "row-1", take=take, piece=piece) for piece in range(3)]
        for take, name in enumerate(["row-1", "row-1__take2"])
    }


def test_kills_and_a_stop_in_the_middle_of_split_rows(tmp_path: Path, fake: Fake) -> None:
    """A row of pieces is made whole or not at all, and in the end all is as if nothing had been."""
    rows = [{**row, "text": LONG} for row in make_rows(40)]
    options: dict[str, Any] = {"split_text": 60, "attempts": 2}
    faults = {piece_id("row-3", 1): "length", piece_id("row-7", 4): "noise"}
    config = make_config(tmp_path, rows, **options)
    moments = random.Random(3)
    for number in [signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGINT]:
        run = start_job(config, faults=faults, row_s=0.05)  # some rows are left for each
        wait_until(lambda: len(processes_of(config.out)) == 1)
        before = sum(journalled(config.out).values())
        wait_until(lambda before=before: sum(journalled(config.out).values()) > before)  # type: ignore[misc]
        time.sleep(moments.uniform(0, 0.3))
        run.send_signal(number)
        run.communicate(timeout=60)
        assert run.returncode in (-signal.SIGKILL, 4)
        wait_until(lambda: not processes_of(config.out))
    made = sum(journalled(config.out).values())
    assert 4 <= made < 40, "the kills must hit work"
    fake(faults=faults)
    summary = run_job(config)
    assert (summary.ok, summary.failed, summary.made) == (38, 2, 40 - made)
    assert set(journalled(config.out).values()) == {1}
    uninterrupted = make_config(tmp_path, rows, out=tmp_path / "uninterrupted", **options)
    run_job(uninterrupted)
    assert snapshot(config.out) == snapshot(uninterrupted.out)


def test_a_killed_worker_s_half_made_row_is_made_again(tmp_path: Path, fake: Fake) -> None:
    fake(slots=1, row_s=0.2)
    config = make_config(tmp_path, rows_with_one_long(2), split_text=100)
    run = start_job(config, slots=1, row_s=0.3, calls=str(tmp_path / "calls"))
    wait_until(lambda: (tmp_path / "calls").exists() and piece_id("row-1", 1) in (tmp_path / "calls").read_text())
    for process in processes_of(config.out):
        kill(process)
    run.communicate(timeout=60)
    assert run.returncode == 0
    asked = calls(tmp_path / "calls")
    assert len(set(asked[piece_id("row-1", 0)])) == 1
    assert len(asked[piece_id("row-1", 0)]) == 2
    assert read_manifest(config.out)[1]["status"] == "ok"


def test_a_stop_lets_a_row_that_has_begun_end(tmp_path: Path, fake: Fake) -> None:
    rows = [{**row, "text": LONG} for row in make_rows(30)]
    config = make_config(tmp_path, rows, split_text=60)
    run = start_job(config, row_s=0.1, slots=1, calls=str(tmp_path / "calls"))
    wait_until(
        lambda: piece_id("row-1", 1) in (tmp_path / "calls").read_text() if (tmp_path / "calls").exists() else False
    )
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=30)
    assert run.returncode == 4
    statuses = [row["status"] for row in read_manifest(config.out)]
    assert statuses[:3] == ["ok", "ok", "pending"]
    assert not any(name.startswith("row-2") for name in calls(tmp_path / "calls"))


def test_a_stop_drops_a_row_that_takes_too_long(tmp_path: Path, fake: Fake) -> None:
    fake(row_s=0.3, slots=2)
    config = make_config(tmp_path, [{**row, "text": LONG} for row in make_rows(6)], split_text=60)
    threading.Timer(1.5, signal.raise_signal, [signal.SIGINT]).start()
    summary = run_job(config, limits=Limits(stop_s=0.2))
    assert (summary.exit_status, summary.failed) == (4, 0)
    assert summary.pending >= 4
    fake()
    assert run_job(config).ok == 6


def test_edges_of_pieces_are_trimmed_too(tmp_path: Path, fake: Fake) -> None:
    fake(edges_s=[0.4, 1.2])
    config = make_config(tmp_path, rows_with_one_long(2), split_text=100, split_pause_s=0.5, trim=True)
    assert run_job(config).ok == 2
    row = read_manifest(config.out)[1]
    checks = json.loads(row["checks"])
    assert checks["trimmed_head_s"] == pytest.approx(0.3, abs=0.02)
    assert checks["trimmed_tail_s"] == pytest.approx(1.1, abs=0.02)
    assert checks["trimmed_inner_s"] == pytest.approx(2 * 1.4, abs=0.06)
    one, two, _ = checks["pieces"]
    assert two["start_s"] - one["start_s"] - one["duration_s"] == pytest.approx(0.5)


# the joined clip


def result(seconds: float, rate_hz: int = RATE, codes: bool = True) -> SpeechResult:
    audio = (0.3 * np.sin(np.arange(round(seconds * rate_hz)) / 20)).astype(np.float32)
    return SpeechResult("a", audio, rate_hz, np.ones((5, 16), np.int64) if codes else None, 5, "stop", True)


def figures(**changed: float) -> dict[str, float]:
    return {"head_silence_s": 0.1, "inner_silence_s": 0.2, "tail_silence_s": 0.1, "flatness": 0.1, **changed}


def examined(
    lengths_s: Sequence[float], pause_s: float, *each: dict[str, float], expected_s: float | None = None
) -> tuple[str | None, dict[str, Any]]:
    results = [result(length_s) for length_s in lengths_s]
    expected_s = sum(lengths_s) if expected_s is None else expected_s
    found = examine_joined(join(results, pause_s), results, each, 10_000, expected_s, CheckLimits())
    return found.failure.reason if found.failure else None, found.checks


def test_the_pause_counts_neither_as_silence_nor_as_length() -> None:
    reason, checks = examined([1.0, 1.0, 1.0], 20.0, figures(), figures(), figures())
    assert reason is None
    assert checks["length_ratio"] == 1.0
    assert checks["inner_silence_s"] == 0.2


def test_silence_around_a_joint_adds_up() -> None:
    reason, checks = examined([8.0, 8.0], 0.3, figures(tail_silence_s=3.0), figures(head_silence_s=2.5))
    assert (reason, checks["inner_silence_s"]) == ("long_silence", 5.5)


def test_the_worst_piece_stands_for_the_clip() -> None:
    _, checks = examined([1.0, 1.0], 0.0, figures(ref_correlation=0.1), figures(ref_correlation=0.6, flatness=0.3))
    assert (checks["ref_correlation"], checks["flatness"]) == (0.6, 0.3)


def test_pieces_that_are_all_rather_long_are_too_long_together() -> None:
    reason, _ = examined([7.0] * 4, 0.3, *[figures()] * 4, expected_s=6.0)
    assert reason == "too_long_for_text"


def test_pieces_of_other_rates_do_not_join() -> None:
    joined = join([result(1.0), result(1.0, rate_hz=16_000)], 0.3)
    assert joined.reason == "engine_error"
    assert joined.audio is None


def test_a_clip_has_come_to_its_end_only_when_every_piece_has() -> None:
    assert join([result(1.0), result(1.0)], 0.3).eos
    assert not join([result(1.0), replace(result(1.0), eos=False)], 0.3).eos


def test_codes_are_joined_only_when_every_piece_has_some() -> None:
    assert join([result(1.0), result(1.0, codes=False)], 0.3).codes is None
    both = join([result(1.0), result(1.0)], 0.3)
    assert both.codes is not None
    assert (both.codes.shape, both.num_frames) == ((10, 16), 10)
