"""What becomes of an engine's results: a clip, another attempt, or a failure; and what is kept of failed attempts."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.run.support import make_active, make_request
from tts_batch.engine.request import Reference, SpeechResult
from tts_batch.ipc.messages import ActiveRow, CheckLimits, ClipRules, EngineLabels
from tts_batch.records import Failure
from tts_batch.store.clips import clip_path, digest_of, quarantine_path
from tts_batch.store.journal import Outcome
from tts_batch.worker.finish import FinishedClip, describe_codes, finish_clip
from tts_batch.worker.references import Tails

RATE_HZ = 24_000
LABELS = EngineLabels(model="some", model_revision="r1", engine="native", runner="v2", dtype="bfloat16")
KEPT = ClipRules(keep_failed_audio=True)


def tone(seconds: float = 1.0) -> np.ndarray:
    return (0.3 * np.sin(np.arange(round(seconds * RATE_HZ)) / 10)).astype(np.float32)


def silence(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE_HZ), np.float32)


GOOD = SpeechResult(
    "a", tone(), RATE_HZ, np.ones((12, 16), np.int64), 12, "stop", True, effective={"language": "english"}
)
LENGTH = replace(GOOD, finish_reason="length", eos=False, num_frames=50)
SILENT = replace(GOOD, audio=silence(1.0))
NO_AUDIO = replace(GOOD, audio=None, codes=None, finish_reason="error", reason="ref_silent", error="It is silent.")


def attempt(*results: SpeechResult | None, number: int = 1, attempts: int = 2, **columns: Any) -> ActiveRow:
    """Every piece's `number`-th attempt of `attempts`; None: of a piece that the engine has not returned."""
    request = replace(make_request("a", num_pieces=len(results), attempts=attempts), **columns)
    return make_active(request, *results, attempt=number)


def finish(row: ActiveRow, rules: ClipRules | None = None) -> FinishedClip:
    """Finish an attempt; exactly one of outcome and retry comes of it."""
    finished = finish_clip(row, rules or ClipRules(), LABELS, Tails())
    assert (finished.outcome is None) != (finished.retry is None)
    if finished.outcome is not None:
        assert Outcome.from_line(finished.outcome.to_line()).to_line() == finished.outcome.to_line()
    return finished


def ended(row: ActiveRow, rules: ClipRules | None = None) -> Outcome:
    outcome = finish(row, rules).outcome
    assert outcome is not None, "it is tried again"
    return outcome


def reasons(records: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [(record.get("piece"), record["attempt"], record["seed"], record["reason"]) for record in records]


# good clips


def test_a_good_result_becomes_a_clip_and_its_record() -> None:
    finished = finish(attempt(GOOD), ClipRules(save_codes=True))
    outcome = finished.outcome
    assert outcome is not None
    assert (outcome.status, outcome.reason, outcome.message, outcome.failed_attempts) == ("ok", None, None, ())
    assert (outcome.audio, outcome.codes) == (clip_path("a"), clip_path("a", ".npy"))
    assert set(finished.files) == {outcome.audio, outcome.codes}
    audio, rate_hz = soundfile.read(io.BytesIO(finished.files[clip_path("a")]), dtype="float32")
    assert audio == pytest.approx(GOOD.audio, abs=1e-4)
    assert (rate_hz, outcome.sample_rate, outcome.duration_s) == (RATE_HZ, RATE_HZ, 1.0)
    for path, size, digest in (
        (clip_path("a"), outcome.audio_bytes, outcome.audio_digest),
        (clip_path("a", ".npy"), outcome.codes_bytes, outcome.codes_digest),
    ):
        assert (len(finished.files[path]), digest_of(finished.files[path])) == (size, digest)
    assert np.load(io.BytesIO(finished.files[clip_path("a", ".npy")])).shape == (12, 16)
    assert (outcome.num_frames, outcome.max_frames, outcome.finish_reason, outcome.eos) == (12, 50, "stop", True)
    assert (outcome.attempts, outcome.seed, outcome.attempt_seeds) == (1, 100, (100,))
    assert (outcome.effective_language, outcome.effective_speaker, outcome.instruct_applied) == ("english", None, False)
    assert (outcome.model, outcome.model_revision, outcome.engine) == ("some", "r1", "native")
    assert (outcome.runner, outcome.dtype) == ("v2", "bfloat16")
    assert outcome.peak == pytest.approx(0.3, abs=1e-3)
    assert finished.result is GOOD


def test_seeds_and_attempts_of_earlier_runs_count() -> None:
    outcome = ended(attempt(GOOD, number=2, seeds_before=(7, 8)))
    assert (outcome.attempts, outcome.seed, outcome.attempt_seeds) == (4, 101, (7, 8, 100, 101))


@pytest.mark.parametrize(("name", "suffix"), [("flac", ".flac"), ("wavf32", ".wav")])
def test_clips_are_written_in_the_format_that_is_asked_for(name: Any, suffix: str) -> None:
    finished = finish(attempt(GOOD), ClipRules(format=name))
    assert list(finished.files) == [clip_path("a", suffix)]
    audio, _ = soundfile.read(io.BytesIO(finished.files[clip_path("a", suffix)]), dtype="float32")
    assert audio == pytest.approx(GOOD.audio, abs=1e-4)


def test_clips_are_trimmed_before_they_are_examined() -> None:
    audio = np.concatenate([silence(6.0), tone(), silence(6.0)])
    assert finish(attempt(replace(GOOD, audio=audio))).retry is not None, "it is too silent as it is"
    outcome = ended(attempt(replace(GOOD, audio=audio)), ClipRules(trim_margin_s=0.1))
    assert outcome.duration_s == pytest.approx(1.2, abs=0.05)
    assert outcome.checks["trimmed_head_s"] == pytest.approx(5.9, abs=0.03)
    assert outcome.checks["trimmed_tail_s"] == pytest.approx(5.9, abs=0.03)


def test_pieces_are_joined_and_described() -> None:
    finished = finish(attempt(GOOD, replace(GOOD, audio=tone(0.5)), GOOD), ClipRules(split_pause_s=0.25))
    outcome = finished.outcome
    assert outcome is not None
    assert (outcome.status, outcome.num_pieces, outcome.num_frames, outcome.max_frames) == ("ok", 3, 36, 150)
    assert outcome.duration_s == 3.0
    assert [(piece["start_s"], piece["duration_s"], piece["seed"]) for piece in outcome.checks["pieces"]] == [
        (0.0, 1.0, 100), (1.25, 0.5, 200), (2.0, 1.0, 300),
    ]  # fmt: skip
    audio, _ = soundfile.read(io.BytesIO(finished.files[clip_path("a")]), dtype="float32")
    pause = silence(0.25)
    assert audio == pytest.approx(np.concatenate([tone(), pause, tone(0.5), pause, tone()]), abs=1e-4)


# other attempts


@pytest.mark.parametrize(
    ("result", "reason"), [(LENGTH, "codec_budget_exhausted"), (SILENT, "silent_output"), (NO_AUDIO, "ref_silent")]
)
def test_a_failed_attempt_is_followed_by_another_until_the_last(result: SpeechResult, reason: str) -> None:
    retry = finish(attempt(result)).retry
    assert retry is not None
    assert (retry.row_id, retry.pieces, reasons(retry.failed_attempts)) == ("a", (0,), [(None, 1, 100, reason)])
    last = attempt(result, number=2)
    last.failed_attempts.extend(retry.failed_attempts)
    finished = finish(last)
    outcome = finished.outcome
    assert outcome is not None
    assert (outcome.status, outcome.reason, outcome.audio, outcome.audio_bytes) == ("failed", reason, None, 0)
    assert (outcome.attempts, outcome.attempt_seeds) == (2, (100, 101))
    assert reasons(outcome.failed_attempts) == [(None, 1, 100, reason), (None, 2, 101, reason)]
    assert finished.files == {}
    assert finished.result is result


def test_a_good_attempt_keeps_the_records_of_those_before() -> None:
    retry = finish(attempt(LENGTH)).retry
    assert retry is not None
    last = attempt(GOOD, number=2)
    last.failed_attempts.extend(retry.failed_attempts)
    outcome = ended(last)
    assert (outcome.status, outcome.attempts, outcome.seed) == ("ok", 2, 101)
    assert reasons(outcome.failed_attempts) == [(None, 1, 100, "codec_budget_exhausted")]


def test_records_tell_what_was_measured_and_which_codes_came() -> None:
    retry = finish(attempt(replace(LENGTH, codes=codes([*range(20), *[7, 8] * 15])))).retry
    assert retry is not None
    (record,) = retry.failed_attempts
    assert (record["num_frames"], record["finish_reason"], record["repeat_lag"]) == (50, "length", 2)
    assert record["flatness"] < 0.2


def test_of_a_split_row_the_pieces_that_failed_are_tried_again() -> None:
    retry = finish(attempt(SILENT, GOOD, LENGTH, seeds_before=(7,))).retry
    assert retry is not None
    assert retry.pieces == (0, 2)
    assert reasons(retry.failed_attempts) == [(1, 2, 100, "silent_output"), (3, 2, 300, "codec_budget_exhausted")]


def test_a_split_row_fails_with_the_first_piece_that_may_not_be_tried_again() -> None:
    row = attempt(SILENT, GOOD, LENGTH, None)
    row.pieces[2].num_attempts = 2
    outcome = ended(row)
    assert (outcome.reason, outcome.num_pieces) == ("codec_budget_exhausted", 4)
    assert str(outcome.message).startswith("Piece 3 of 4: No end of speech")
    assert (outcome.finish_reason, outcome.num_frames, outcome.attempts) == ("length", 50, 2)
    assert reasons(outcome.failed_attempts) == [(1, 1, 100, "silent_output"), (3, 2, 301, "codec_budget_exhausted")]


SILENT_EDGE = replace(GOOD, audio=np.concatenate([tone(), silence(2.8)]))


def test_good_pieces_that_are_no_good_clip_are_all_tried_again() -> None:
    pieces = (SILENT_EDGE, replace(GOOD, audio=np.concatenate([silence(2.8), tone()])))
    retry = finish(attempt(*pieces), ClipRules(keep_failed_audio=True)).retry
    assert retry is not None
    assert (retry.pieces, reasons(retry.failed_attempts)) == ((0, 1), [(None, 1, 100, "long_silence")])
    outcome = ended(attempt(*pieces, number=2))
    assert (outcome.reason, outcome.audio) == ("long_silence", None)
    assert not str(outcome.message).startswith("Piece")
    assert reasons(outcome.failed_attempts) == [(None, 2, 101, "long_silence")]


def test_pieces_that_cannot_be_joined_are_the_engine_s_error() -> None:
    outcome = ended(attempt(GOOD, replace(GOOD, sample_rate=16_000), number=2))
    assert (outcome.reason, outcome.audio) == ("engine_error", None)
    assert "different sample rates" in str(outcome.message)


# rows that failed without a result


@pytest.mark.parametrize("num_attempts", [0, 1, 2])
def test_a_row_that_has_failed_is_only_recorded(num_attempts: int) -> None:
    failure = Failure("time_limit", "It was not complete after 5 s.")
    row = attempt(GOOD, number=num_attempts)
    row.fail(failure)
    finished = finish(row, KEPT)
    outcome = finished.outcome
    assert outcome is not None
    assert (outcome.status, outcome.reason, outcome.message) == ("failed", "time_limit", failure.message)
    assert (outcome.num_frames, outcome.finish_reason, outcome.peak) == (None, None, None)
    seed = 101 if num_attempts == 2 else 100
    assert (outcome.attempts, outcome.seed) == (max(num_attempts, 1), seed)
    assert reasons(outcome.failed_attempts) == [(None, max(num_attempts, 1), seed, "time_limit")]
    assert finished.files == {}


def test_a_row_that_failed_in_a_piece_names_it() -> None:
    failure = Failure("stalled", "The engine returned no result.")
    row = attempt(GOOD, None, None, attempts=1)
    row.fail(failure, 1)
    outcome = ended(row)
    assert outcome.message == "Piece 2 of 3: The engine returned no result."
    assert reasons(outcome.failed_attempts) == [(2, 1, 200, "stalled")]


def test_an_exception_fails_the_row() -> None:
    broken = replace(GOOD, effective=None)  # type: ignore[arg-type]
    outcome = ended(attempt(broken))
    assert (outcome.status, outcome.reason) == ("failed", "worker_crash")
    assert str(outcome.message).startswith("Finishing its clip raised AttributeError")


def test_what_a_format_cannot_hold_fails_the_row() -> None:
    outcome = ended(attempt(replace(GOOD, sample_rate=22_050)), ClipRules(format="opus"))
    assert (outcome.reason, outcome.audio) == ("write_failed", None)


def test_a_clip_that_is_not_written_is_not_encoded() -> None:
    finished = finish_clip(attempt(GOOD), ClipRules(), LABELS, Tails(), encode=False)
    assert finished.outcome is not None
    assert (finished.outcome.status, finished.outcome.audio, finished.files) == ("ok", None, {})
    assert finished.result is GOOD


# audio of failed attempts


def test_the_audio_of_failed_attempts_is_kept_when_that_is_asked_for() -> None:
    assert finish(attempt(LENGTH)).files == {}
    assert set(finish(attempt(LENGTH), KEPT).files) == {quarantine_path("a", 1)}
    finished = finish(attempt(LENGTH, number=2, seeds_before=(7,)), KEPT)
    assert set(finished.files) == {quarantine_path("a", 3)}
    audio, _ = soundfile.read(io.BytesIO(finished.files[quarantine_path("a", 3)]), dtype="float32")
    assert audio == pytest.approx(GOOD.audio, abs=1e-4)


def test_of_split_rows_the_failed_pieces_or_the_failed_whole_are_kept() -> None:
    files = finish(attempt(SILENT, GOOD, LENGTH), KEPT).files
    assert set(files) == {quarantine_path("a", 1, 1), quarantine_path("a", 1, 3)}
    row = attempt(SILENT_EDGE, replace(GOOD, audio=np.concatenate([silence(2.8), tone()])), attempts=3)
    row.pieces[1].num_attempts = 2
    whole = finish(row, KEPT)
    assert set(whole.files) == {quarantine_path("a", 1)}
    audio, _ = soundfile.read(io.BytesIO(whole.files[quarantine_path("a", 1)]))
    assert len(audio) == round((1.0 + 2.8 + 0.3 + 2.8 + 1.0) * RATE_HZ)


@pytest.mark.parametrize(
    "audio", [None, np.zeros(0, np.float32), np.zeros((2, 100), np.float32), np.float32(1.0).reshape(())]
)
def test_what_is_no_waveform_is_not_kept(audio: np.ndarray | None) -> None:
    finished = finish(attempt(replace(LENGTH, audio=audio)), KEPT)
    assert finished.retry is not None
    assert finished.files == {}
    assert finish(attempt(replace(LENGTH, sample_rate=0)), KEPT).files == {}


def test_samples_that_are_not_finite_are_kept_as_silence() -> None:
    audio = tone()
    audio[100:200] = np.nan
    finished = finish(attempt(replace(GOOD, audio=audio), attempts=1), KEPT)
    assert finished.outcome is not None
    assert finished.outcome.reason == "non_finite"
    (content,) = finished.files.values()
    kept, _ = soundfile.read(io.BytesIO(content), dtype="float32")
    assert not kept[100:200].any()


# limits


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("silent_peak_dbfs", "silent_output"),
        ("too_long_factor", "too_long_for_text"),
        ("long_silence_s", "long_silence"),
        ("noise_flatness", "noise_output"),
        ("ref_correlation", "ref_leak"),
    ],
)
def test_a_limit_of_0_is_the_strictest_and_none_turns_a_check_off(limit: str, reason: str) -> None:
    limits = CheckLimits(**{**dict.fromkeys(CheckLimits().to_dict()), limit: 0.0})
    rng = np.random.default_rng(0)
    voice = rng.standard_normal(2 * RATE_HZ).astype(np.float32)
    audio = np.concatenate([tone(2.0), silence(0.5)])
    row = attempt(replace(GOOD, audio=audio), attempts=1, reference=Reference("voice", lambda: voice))
    assert ended(row, ClipRules(limits=limits)).reason == reason
    assert ended(row, ClipRules(limits=replace(limits, **{limit: None}))).status == "ok"


def test_a_reference_that_leaked_is_found() -> None:
    rng = np.random.default_rng(0)
    reference = np.float32(0.25) * np.convolve(rng.standard_normal(3 * RATE_HZ), np.ones(8) / 8).astype(np.float32)
    leaked = replace(GOOD, audio=np.concatenate([reference, tone(2.0)]))
    retry = finish(attempt(leaked, reference=Reference("voice", lambda: reference))).retry
    assert retry is not None
    assert reasons(retry.failed_attempts) == [(None, 1, 100, "ref_leak")]
    outcome = ended(attempt(GOOD, reference=Reference("voice", lambda: reference)))
    assert outcome.checks["ref_correlation"] < 0.5


# codes


def codes(first: list[int]) -> np.ndarray:
    return np.array(first)[:, None].repeat(16, axis=1)


def test_repetition_is_described() -> None:
    described = describe_codes(codes([*range(100), *[7, 8, 9] * 20]))
    assert (described["repeated_frames"], described["repeat_lag"]) == (57, 3)
    assert described["first_codes"] == list(range(16))
    assert described["last_codes"] == [7, 8, 9] * 16
    assert described["distinct_codes"] == 100


@pytest.mark.parametrize(("first", "run", "lag"), [([5], 0, 0), ([5, 5], 1, 1), ([1, 2, 3], 0, 0), ([4] * 40, 39, 1)])
def test_short_takes(first: list[int], run: int, lag: int) -> None:
    described = describe_codes(codes(first))
    assert (described["repeated_frames"], described["repeat_lag"]) == (run, lag)


def test_no_codes_say_nothing() -> None:
    assert describe_codes(None) == {}
    assert describe_codes(np.zeros((0, 16), np.int64)) == {}
