"""finish_clip: a row's engine results to its clip and its record, or to another attempt. The same for every caller.

Each piece is trimmed where that is asked for and examined; good ones are joined, examined as a whole and encoded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts_batch.engine.request import SpeechResult
from tts_batch.errors import Reason, RowError
from tts_batch.ipc.messages import ClipRules, ClipTask, EngineLabels, PieceResult, RetryPieces, RowTask
from tts_batch.records import Failure
from tts_batch.store.clips import CONTAINERS, clip_path, encode_clip, encode_files, quarantine_path
from tts_batch.store.journal import Outcome
from tts_batch.worker.checks import Examined, examine
from tts_batch.worker.pieces import describe_pieces, examine_joined, join, of_piece
from tts_batch.worker.sound import Tail
from tts_batch.worker.trim import trim

log = logging.getLogger(__name__)

FIRST_CODES, LAST_CODES = 16, 48
MAX_LAG = 16


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

    piece: PieceResult
    result: SpeechResult
    examined: Examined


def finish_clip(
    task: ClipTask, rules: ClipRules, labels: EngineLabels, tail: Tail | None = None, *, encode: bool = True
) -> FinishedClip:
    """Finish an attempt at a row. `tail` is that of its reference, to be recognised in the clip.

    A row fails with the first piece that may not be tried again; until then all that failed are. An exception fails
    the row too, and no other. `encode`: a good clip has its files; without, only its samples.
    """
    try:
        return _finish(task, rules, labels, tail, encode)
    except Exception as error:
        log.exception("row %r could not be finished", task.row.id)
        return _fail(task, labels, _failure_of(error), None, None, ())


def _finish(task: ClipTask, rules: ClipRules, labels: EngineLabels, tail: Tail | None, encode: bool) -> FinishedClip:
    row = task.row
    if task.failure is not None:
        return _fail(task, labels, task.failure, task.failed_piece, None, ())
    pieces = [_examine_piece(row, piece, rules, tail) for piece in task.results]
    failed = [piece for piece in pieces if piece.examined.failure is not None]
    if not failed:
        result, examined = _whole(row, pieces, rules)
        if examined.failure is None:
            return _succeed(task, rules, labels, result, examined, encode)
        failed = [replace(piece, result=result, examined=examined) for piece in pieces]
        records = [_record(task, failed[0], None)]
        number = None
    else:
        records = [_record(task, piece, piece.piece.number) for piece in failed]
        number = next((one.piece.number for one in failed if one.piece.is_last_attempt), failed[0].piece.number)
    kept = _failed_audio(row, failed if number is not None else failed[:1], number) if rules.keep_failed_audio else {}
    if not any(piece.piece.is_last_attempt for piece in failed):
        at_fault = tuple(piece.piece.number for piece in failed)
        return FinishedClip(retry=RetryPieces(row.id, at_fault, tuple(records)), files=kept)
    last = next((one for one in failed if one.piece.number == number), failed[0])
    return _fail(task, labels, last.examined.failure, number, last, records, kept)


def _examine_piece(row: RowTask, piece: PieceResult, rules: ClipRules, tail: Tail | None) -> _Examination:
    asked, result = row.pieces[piece.number], piece.result
    removed: dict[str, float] = {}
    if rules.trim_margin_s is not None:
        result, removed = trim(result, rules.trim_margin_s)
    examined = examine(result, asked.max_frames, asked.expected_s, rules.limits, tail)
    examined = replace(examined, checks=examined.checks | removed)
    if examined.failure is not None and row.is_split:
        examined = replace(examined, failure=of_piece(examined.failure, piece.number, len(row.pieces)))
    return _Examination(piece, result, examined)


def _whole(row: RowTask, pieces: Sequence[_Examination], rules: ClipRules) -> tuple[SpeechResult, Examined]:
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
    described = describe_pieces(parts, results, rules.split_pause_s)
    return joined, replace(examined, checks={**examined.checks, "pieces": described})


def _succeed(
    task: ClipTask, rules: ClipRules, labels: EngineLabels, result: SpeechResult, examined: Examined, encode: bool
) -> FinishedClip:
    assert result.audio is not None, "it has passed its checks"
    if not encode:
        return FinishedClip(_outcome(task, labels, None, result, examined, task.failed_attempts), result=result)
    clip = encode_files(result, rules.format, rules.save_codes)
    path = clip_path(task.row.id, CONTAINERS[rules.format].suffix)
    outcome = replace(
        _outcome(task, labels, None, result, examined, task.failed_attempts),
        duration_s=result.audio.size / result.sample_rate,
        sample_rate=result.sample_rate,
        audio=path,
        audio_bytes=len(clip.audio),
        audio_digest=clip.audio_digest,
    )
    files = {path: clip.audio}
    if clip.codes is not None:
        path = clip_path(task.row.id, ".npy")
        outcome = replace(outcome, codes=path, codes_bytes=len(clip.codes), codes_digest=clip.codes_digest)
        files[path] = clip.codes
    return FinishedClip(outcome, result=result, files=files)


def _fail(
    task: ClipTask,
    labels: EngineLabels,
    failure: Failure | None,
    number: int | None,
    last: _Examination | None,
    records: Sequence[Mapping[str, Any]],
    files: Mapping[str, bytes] | None = None,
) -> FinishedClip:
    assert failure is not None
    if last is None:
        if number is not None and task.row.is_split:
            failure = of_piece(failure, number, len(task.row.pieces))
        records = [_failed_attempt(task, number, failure)]
    result = last.result if last else None
    examined = replace(last.examined, failure=failure) if last else Examined(failure)
    outcome = _outcome(task, labels, failure, result, examined, (*task.failed_attempts, *records))
    return FinishedClip(outcome, result=result, files=files or {})


def _failure_of(error: Exception) -> Failure:
    if isinstance(error, RowError):
        return Failure(error.reason, error.message)
    reason: Reason = "out_of_memory" if isinstance(error, MemoryError) else "worker_crash"
    return Failure(reason, f"Finishing its clip raised {type(error).__name__}: {error}.")


def row_outcome(row: RowTask, num_attempts: int, failure: Failure | None) -> Outcome:
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


def _outcome(
    task: ClipTask,
    labels: EngineLabels,
    failure: Failure | None,
    result: SpeechResult | None,
    examined: Examined,
    failed_attempts: Sequence[Mapping[str, Any]],
) -> Outcome:
    outcome = replace(
        row_outcome(task.row, max(task.num_attempts, 1), failure),
        failed_attempts=tuple(dict(record) for record in failed_attempts),
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


def _record(task: ClipTask, one: _Examination, number: int | None) -> dict[str, Any]:
    """Return the record of a failed attempt with what helps to understand it; `number`: of the piece, None: all."""
    assert one.examined.failure is not None
    record = _attempt_record(task.row, one.piece.attempt, one.piece.seed, one.examined.failure, number)
    record |= {"num_frames": int(one.result.num_frames), "finish_reason": str(one.result.finish_reason)}
    return record | describe_codes(one.result.codes) | one.examined.checks


def _failed_attempt(task: ClipTask, number: int | None, failure: Failure) -> dict[str, Any]:
    """Return the record of an attempt that ended without a result."""
    attempt = max(task.num_attempts, 1)
    seeds = task.row.pieces[number or 0].seeds
    return _attempt_record(task.row, attempt, seeds[min(attempt, len(seeds)) - 1], failure, number)


def _attempt_record(row: RowTask, attempt: int, seed: int, failure: Failure, number: int | None) -> dict[str, Any]:
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


def _failed_audio(row: RowTask, failed: Sequence[_Examination], number: int | None) -> dict[str, bytes]:
    """Return the audio of failed attempts, each under its path."""
    files = {}
    for one in failed:
        audio, rate_hz = one.result.audio, one.result.sample_rate
        if audio is None or audio.ndim != 1 or not audio.size or rate_hz <= 0:
            continue
        piece = one.piece.number + 1 if number is not None and row.is_split else None
        path = quarantine_path(row.id, len(row.seeds_before) + one.piece.attempt, piece)
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
