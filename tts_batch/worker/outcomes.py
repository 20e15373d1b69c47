"""The record of a row's end, from what the worker knows of it, or from what the parent knows of its workers' ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tts_batch.engine.request import SpeechResult
from tts_batch.errors import Reason
from tts_batch.store.clips import ClipFiles, clip_path
from tts_batch.store.index import input_digest
from tts_batch.store.journal import Outcome
from tts_batch.worker.checks import Examined
from tts_batch.worker.rows import ActiveRow

if TYPE_CHECKING:
    from tts_batch.plan.rows import PlannedRow


def row_outcome(
    row: ActiveRow, result: SpeechResult | None, examined: Examined, constants: Mapping[str, Any]
) -> Outcome:
    """Return the record of a row that ended in a worker; its files are not in it yet.

    `result` is that of the whole row, or of the piece of it that failed.
    """
    failure = examined.failure
    seeds = row.attempt_seeds
    outcome = Outcome(
        id=row.id,
        fingerprint=row.fingerprint,
        input_digest=row.input_digest,
        status="failed" if failure else "ok",
        reason=failure.reason if failure else None,
        message=failure.message if failure else None,
        max_frames=row.max_frames,
        attempts=len(seeds),
        seed=seeds[-1],
        attempt_seeds=tuple(seeds),
        failed_attempts=tuple(row.failures),
        checks=examined.checks,
        num_pieces=len(row.pieces),
        **constants,
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
    outcome = replace(outcome, peak=levels.peak, rms_dbfs=levels.rms_dbfs, clipped_samples=levels.clipped_samples)
    if failure is not None or result.audio is None:
        return outcome
    return replace(outcome, duration_s=result.audio.size / result.sample_rate, sample_rate=result.sample_rate)


def with_files(
    outcome: Outcome, clip: ClipFiles, suffix: str, kept: Mapping[str, bytes]
) -> tuple[Outcome, Mapping[str, bytes]]:
    """Return the record of a good row, now with its files, and these by path; `kept` are more of them."""
    path = clip_path(outcome.id, suffix)
    outcome = replace(outcome, audio=path, audio_bytes=len(clip.audio), audio_digest=clip.audio_digest)
    files = {path: clip.audio, **kept}
    if clip.codes is not None:
        path = clip_path(outcome.id, ".npy")
        outcome = replace(outcome, codes=path, codes_bytes=len(clip.codes), codes_digest=clip.codes_digest)
        files[path] = clip.codes
    return outcome, files


def killer_outcome(work_seeds: list[int], planned: PlannedRow, reason: Reason, message: str) -> Outcome:
    """Return the record of a row that ended its workers instead of itself, in the last of `work_seeds`."""
    return Outcome(
        id=planned.row.id,
        fingerprint=planned.fingerprint,
        input_digest=input_digest(planned),
        status="failed",
        reason=reason,
        message=message,
        max_frames=planned.max_frames,
        attempts=len(work_seeds),
        seed=work_seeds[-1],
        attempt_seeds=tuple(work_seeds),
        num_pieces=len(planned.pieces),
    )
