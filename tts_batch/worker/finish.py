"""finish_clip: a row's engine results to its clip and its record, or to another attempt. The same for every caller.

Each piece is trimmed where that is asked for and examined; good ones are joined, examined as a whole and encoded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts_batch.engine.request import SpeechResult
from tts_batch.errors import Reason, RowError
from tts_batch.ipc.messages import ActivePiece, ActiveRow, CheckLimits, ClipRules, EngineLabels, RetryPieces, RowRequest
from tts_batch.records import Failure
from tts_batch.store.clips import CONTAINERS, clip_path, encode_clip, encode_files, quarantine_path
from tts_batch.store.journal import Outcome
from tts_batch.worker.examine import (
    Audio,
    Examined,
    Tail,
    examine,
    find_bad_sound,
    find_broken_audio,
    find_fault,
    find_sound,
    measure,
)
from tts_batch.worker.references import Tails

log = logging.getLogger(__name__)

FIRST_CODES, LAST_CODES = 16, 48
MAX_LAG = 16
_THE_WORST = ("flatness", "zero_crossings", "ref_correlation")


@dataclass(frozen=True, slots=True, eq=False)
class FinishedClip:
    """What became of an attempt at a row: an `outcome`, or a `retry`; and `files` to write, by path."""

    outcome: Outcome | None = None
    retry: RetryPieces | None = None
    result: SpeechResult | None = None  # of the whole row when it is good; of the piece that failed otherwise
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class _Examination:
    """A piece's result as it will be used, and what was found in it."""

    piece: ActivePiece
    result: SpeechResult
    examined: Examined


def finish_clip(
    row: ActiveRow, rules: ClipRules, labels: EngineLabels, tails: Tails, *, encode: bool = True
) -> FinishedClip:
    """Finish an attempt at a row; `tails` are those of references, to be recognised in clips.

    A row fails with the first piece that may not be tried again; until then all that failed are. An exception fails
    the row too, and no other. `encode`: a good clip has its files; without, only its samples.
    """
    try:
        return _finish(row, rules, labels, tails, encode)
    except Exception as error:
        log.exception("row %r could not be finished", row.id)
        return _fail(row, labels, _failure_of(error), None, None, ())


def _finish(row: ActiveRow, rules: ClipRules, labels: EngineLabels, tails: Tails, encode: bool) -> FinishedClip:
    if row.failure is not None:
        return _fail(row, labels, row.failure, row.failed_piece, None, ())
    tail = tails.of(row, rules.limits)
    pieces = [_examine_piece(row.request, piece, rules, tail) for piece in row.pieces if piece.result is not None]
    failed = [piece for piece in pieces if piece.examined.failure is not None]
    if not failed:
        result, examined = _whole(row.request, pieces, rules)
        if examined.failure is None:
            return _succeed(row, rules, labels, result, examined, encode)
        failed = [replace(piece, result=result, examined=examined) for piece in pieces]
        records = [_record(row.request, failed[0], None)]
        number = None
    else:
        records = [_record(row.request, piece, piece.piece.number) for piece in failed]
        number = next((one.piece.number for one in failed if one.piece.is_last_attempt), failed[0].piece.number)
    files: dict[str, bytes] = {}
    if rules.keep_failed_audio:
        files = _failed_audio(row.request, failed if number is not None else failed[:1], number)
    if not any(piece.piece.is_last_attempt for piece in failed):
        at_fault = tuple(piece.piece.number for piece in failed)
        return FinishedClip(retry=RetryPieces(row.id, at_fault, tuple(records)), files=files)
    last = next((one for one in failed if one.piece.number == number), failed[0])
    return _fail(row, labels, last.examined.failure, number, last, records, files)


def _examine_piece(row: RowRequest, piece: ActivePiece, rules: ClipRules, tail: Tail | None) -> _Examination:
    asked, result = piece.request, piece.result
    assert result is not None
    removed: dict[str, float] = {}
    if rules.trim_margin_s is not None:
        result, removed = trim(result, rules.trim_margin_s)
    examined = examine(result, asked.max_frames, asked.expected_s, rules.limits, tail)
    examined = replace(examined, checks=examined.checks | removed)
    if examined.failure is not None and row.is_split:
        examined = replace(examined, failure=_of_piece(examined.failure, piece.number, len(row.pieces)))
    return _Examination(piece, result, examined)


def _whole(row: RowRequest, pieces: Sequence[_Examination], rules: ClipRules) -> tuple[SpeechResult, Examined]:
    """Return the row's result, joined of its good pieces, and what was found in it."""
    if not row.is_split:
        return pieces[0].result, pieces[0].examined
    results = [piece.result for piece in pieces]
    joined = join(results, rules.split_pause_s)
    figures = [piece.examined.checks for piece in pieces]
    examined = examine_joined(joined, results, figures, row.max_frames, row.expected_s, rules.limits)
    if examined.failure is not None:
        return joined, examined
    parts = [(row.pieces[one.piece.number].text, one.piece.seed) for one in pieces]
    described = _describe_pieces(parts, results, rules.split_pause_s)
    return joined, replace(examined, checks={**examined.checks, "pieces": described})


def _succeed(
    row: ActiveRow, rules: ClipRules, labels: EngineLabels, result: SpeechResult, examined: Examined, encode: bool
) -> FinishedClip:
    assert result.audio is not None, "it has passed its checks"
    outcome = _outcome(row, labels, None, result, examined, row.failed_attempts)
    if not encode:
        return FinishedClip(outcome, result=result)
    clip = encode_files(result, rules.format, rules.save_codes)
    path = clip_path(row.id, CONTAINERS[rules.format].suffix)
    outcome = replace(
        outcome,
        duration_s=result.audio.size / result.sample_rate,
        sample_rate=result.sample_rate,
        audio=path,
        audio_bytes=len(clip.audio),
        audio_digest=clip.audio_digest,
    )
    files = {path: clip.audio}
    if clip.codes is not None:
        path = clip_path(row.id, ".npy")
        outcome = replace(outcome, codes=path, codes_bytes=len(clip.codes), codes_digest=clip.codes_digest)
        files[path] = clip.codes
    return FinishedClip(outcome, result=result, files=files)


def _fail(
    row: ActiveRow,
    labels: EngineLabels,
    failure: Failure | None,
    number: int | None,
    last: _Examination | None,
    records: Sequence[Mapping[str, Any]],
    files: Mapping[str, bytes] | None = None,
) -> FinishedClip:
    assert failure is not None
    if last is None:
        if number is not None and row.request.is_split:
            failure = _of_piece(failure, number, len(row.pieces))
        records = [_failed_attempt(row, number, failure)]
    result = last.result if last else None
    examined = replace(last.examined, failure=failure) if last else Examined(failure)
    outcome = _outcome(row, labels, failure, result, examined, (*row.failed_attempts, *records))
    return FinishedClip(outcome, result=result, files=files or {})


def _failure_of(error: Exception) -> Failure:
    if isinstance(error, RowError):
        return Failure(error.reason, error.message)
    reason: Reason = "out_of_memory" if isinstance(error, MemoryError) else "worker_crash"
    return Failure(reason, f"Finishing its clip raised {type(error).__name__}: {error}.")


def row_outcome(row: RowRequest, num_attempts: int, failure: Failure | None) -> Outcome:
    """Return what is recorded of a row whatever an engine returned, after `num_attempts` in this run."""
    seeds = (*row.seeds_before, *row.pieces[0].seeds[:num_attempts])
    return Outcome(
        id=row.id,
        fingerprint=row.fingerprint,
        input_digest=row.input_digest,
        status="failed" if failure else "ok",
        reason=failure.reason if failure else None,
        message=failure.message if failure else None,
        max_frames=row.max_frames,
        attempts=len(seeds),
        seed=seeds[-1],
        attempt_seeds=seeds,
        num_pieces=len(row.pieces),
    )


def poison_outcome(row: RowRequest, deaths: Sequence[Failure], failure: Failure) -> Outcome:
    """Return what is recorded of a row that ended workers, each of them in an attempt with the first seed."""
    seed = row.pieces[0].seeds[0]
    seeds = (*row.seeds_before, *(seed for _ in deaths))
    records = [_attempt_record(row, number, seed, death, None) for number, death in enumerate(deaths, 1)]
    outcome = row_outcome(row, 1, failure)
    return replace(
        outcome, attempts=len(seeds), attempt_seeds=seeds, failed_attempts=(*map(dict, row.failed_before), *records)
    )


def _outcome(
    row: ActiveRow,
    labels: EngineLabels,
    failure: Failure | None,
    result: SpeechResult | None,
    examined: Examined,
    failed_attempts: Sequence[Mapping[str, Any]],
) -> Outcome:
    outcome = replace(
        row_outcome(row.request, max(row.num_attempts, 1), failure),
        failed_attempts=tuple(dict(record) for record in (*row.request.failed_before, *failed_attempts)),
        checks=examined.checks,
        **asdict(labels),
    )
    if result is None:
        return outcome
    outcome = replace(
        outcome,
        num_frames=int(result.num_frames),
        finish_reason=result.finish_reason,
        eos=bool(result.eos),
        effective_language=result.effective.get("language"),
        effective_speaker=result.effective.get("speaker"),
        instruct_applied=bool(result.effective.get("instruct")),
    )
    levels = examined.levels
    if levels is None:
        return outcome
    return replace(outcome, peak=levels.peak, rms_dbfs=levels.rms_dbfs, clipped_samples=levels.clipped_samples)


def _record(row: RowRequest, one: _Examination, number: int | None) -> dict[str, Any]:
    """Return the record of a failed attempt with what helps to understand it; `number`: of the piece, None: all."""
    assert one.examined.failure is not None
    record = _attempt_record(row, one.piece.num_attempts, one.piece.seed, one.examined.failure, number)
    record |= {"num_frames": int(one.result.num_frames), "finish_reason": str(one.result.finish_reason)}
    return record | describe_codes(one.result.codes) | one.examined.checks


def _failed_attempt(row: ActiveRow, number: int | None, failure: Failure) -> dict[str, Any]:
    """Return the record of an attempt that ended without a result."""
    attempt = max(row.num_attempts, 1)
    seeds = row.request.pieces[number or 0].seeds
    return _attempt_record(row.request, attempt, seeds[min(attempt, len(seeds)) - 1], failure, number)


def _attempt_record(row: RowRequest, attempt: int, seed: int, failure: Failure, number: int | None) -> dict[str, Any]:
    """Return what every record of a failed attempt begins with; `attempt`: in this run, counted from 1."""
    record: dict[str, Any] = {
        "attempt": len(row.seeds_before) + attempt,
        "seed": seed,
        "reason": failure.reason,
        "message": failure.message,
    }
    if number is not None and row.is_split:
        record["piece"] = number + 1
    return record


def _failed_audio(row: RowRequest, failed: Sequence[_Examination], number: int | None) -> dict[str, bytes]:
    """Return the audio of failed attempts, each under its path."""
    files = {}
    for one in failed:
        audio, rate_hz = one.result.audio, one.result.sample_rate
        if audio is None or audio.ndim != 1 or not audio.size or rate_hz <= 0:
            continue
        piece = one.piece.number + 1 if number is not None and row.is_split else None
        path = quarantine_path(row.id, len(row.seeds_before) + one.piece.num_attempts, piece)
        files[path] = encode_clip(audio, rate_hz, "wav")
    return files


def describe_codes(codes: NDArray[np.integer] | None) -> dict[str, Any]:
    """Return first and last first-codebook codes of [num_frames, 16] codes, and how much they repeat themselves.

    `repeated_frames` is the longest run of frames that equal those `repeat_lag` frames before.
    """
    if codes is None or codes.ndim != 2 or not len(codes):
        return {}
    first = codes[:, 0]
    runs = [(_longest_run(first[lag:] == first[:-lag]), lag) for lag in range(1, min(MAX_LAG, len(first) - 1) + 1)]
    repeated, lag = max(runs, key=lambda run: (run[0], -run[1]), default=(0, 0))
    return {
        "first_codes": first[:FIRST_CODES].tolist(),
        "last_codes": first[-LAST_CODES:].tolist(),
        "distinct_codes": int(np.unique(first).size),
        "repeated_frames": repeated,
        "repeat_lag": lag if repeated else 0,
    }


def _longest_run(true: NDArray[np.bool_]) -> int:
    """Return the length of the longest run of True in [n]."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], true.astype(np.int8), [0]])))
    return int((edges[1::2] - edges[::2]).max(initial=0))


# The pieces of a split text


def _of_piece(failure: Failure, number: int, count: int) -> Failure:
    """Return `failure` as that of a piece, counted from 0, among `count`."""
    return replace(failure, message=f"Piece {number + 1} of {count}: {failure.message}")


def join(results: Sequence[SpeechResult], pause_s: float) -> SpeechResult:
    """Return one result for good ones, in order: audio with a pause between each two, frames and codes without.

    Pieces of different sample rates do not join: the result is an "error" then.
    """
    first = results[0]
    rates_hz = sorted({result.sample_rate for result in results})
    if len(rates_hz) > 1:
        error = f"Its pieces have different sample rates: {', '.join(map(str, rates_hz))} Hz."
        return replace(first, audio=None, finish_reason="error", reason="engine_error", error=error)
    pause = np.zeros(round(pause_s * first.sample_rate), np.float32)
    codes = [result.codes for result in results if result.codes is not None]
    return replace(
        first,
        audio=np.concatenate([part for result in results for part in (pause, _audio(result))][1:]),
        codes=np.concatenate(codes) if len(codes) == len(results) else None,
        num_frames=sum(result.num_frames for result in results),
        eos=all(result.eos for result in results),
    )


def examine_joined(
    joined: SpeechResult,
    results: Sequence[SpeechResult],
    figures: Sequence[Mapping[str, float]],
    max_frames: int,
    expected_s: float,
    limits: CheckLimits,
) -> Examined:
    """Judge a clip joined of `results` that have passed with these `figures`. The pauses between them do not count."""
    failure = find_fault(joined, max_frames, limits.silent_peak_dbfs)
    if joined.audio is None:
        return Examined(failure)
    speech_s = sum(_audio(result).size for result in results) / joined.sample_rate
    checks = _combine(figures) | {"length_ratio": round(speech_s / expected_s, 3)}
    return Examined(failure or find_bad_sound(checks, speech_s, expected_s, limits), measure(joined.audio), checks)


def _combine(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    first, last = figures[0], figures[-1]
    joints = [one["tail_silence_s"] + other["head_silence_s"] for one, other in pairwise(figures)]
    checks = {
        "head_silence_s": first["head_silence_s"],
        "inner_silence_s": max(*joints, *(piece["inner_silence_s"] for piece in figures)),
        "tail_silence_s": last["tail_silence_s"],
    }
    checks |= {name: max(piece[name] for piece in figures) for name in _THE_WORST if name in first}
    if "trimmed_head_s" in first:
        within = sum(one["trimmed_tail_s"] + other["trimmed_head_s"] for one, other in pairwise(figures))
        checks |= {"trimmed_head_s": first["trimmed_head_s"], "trimmed_tail_s": last["trimmed_tail_s"]}
        checks |= {"trimmed_inner_s": within}
    return {name: round(figure, 3) for name, figure in checks.items()}


def _describe_pieces(
    parts: Sequence[tuple[str, int]], results: Sequence[SpeechResult], pause_s: float
) -> list[dict[str, Any]]:
    """Return what the manifest keeps of each piece: where in the clip it begins, its length, its seed, its text.

    `parts`: text and seed of each.
    """
    described, start = [], 0
    for (text, seed), result in zip(parts, results, strict=True):
        samples, rate_hz = _audio(result).size, result.sample_rate
        place = {"start_s": round(start / rate_hz, 4), "duration_s": round(samples / rate_hz, 4)}
        described.append({**place, "num_frames": int(result.num_frames), "seed": seed, "text": text})
        start += samples + round(pause_s * rate_hz)
    return described


def _audio(result: SpeechResult) -> Audio:
    assert result.audio is not None, "it has passed its checks"
    return result.audio


# --trim: silence off the edges of a clip, by the clip's own level, so that a quiet voice stays whole


def trim(result: SpeechResult, margin_s: float) -> tuple[SpeechResult, dict[str, float]]:
    """Return `result` with at most `margin_s` of silence at either edge, and the seconds that were removed.

    Its codes and `num_frames` stay those of the whole. What has no audio, or nothing but silence, stays as it is.
    """
    audio, rate_hz = result.audio, result.sample_rate
    if audio is None or find_broken_audio(result):
        return result, {}
    start, stop = find_sound(audio, rate_hz)
    margin = round(margin_s * rate_hz)
    start, stop = max(0, start - margin), min(audio.size, stop + margin)
    removed = {"trimmed_head_s": start / rate_hz, "trimmed_tail_s": (audio.size - stop) / rate_hz}
    return replace(result, audio=audio[start:stop]), {name: round(seconds, 3) for name, seconds in removed.items()}
