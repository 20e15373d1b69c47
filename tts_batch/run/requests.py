"""What the parent tells a worker: how to start, and what to make."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tts_batch.cache import find_cache_folder
from tts_batch.config import JobConfig
from tts_batch.engine.request import FRAMES_PER_S, EngineConfig, SamplingParams
from tts_batch.ipc.channel import Message
from tts_batch.plan.seeds import derive_seed
from tts_batch.run.devices import Device
from tts_batch.run.references import ReferenceSpool
from tts_batch.store.index import input_digest
from tts_batch.store.journal import Outcome
from tts_batch.worker.checks import CheckLimits
from tts_batch.worker.pieces import piece_id
from tts_batch.worker.rows import NEW_DRAW_HELPS

if TYPE_CHECKING:
    from tts_batch.plan.models import ModelGroup
    from tts_batch.plan.planner import GroupTotals
    from tts_batch.plan.rows import PlannedRow

NOISY = ("tiny-noise", "tiny-random")  # they make noise of any length, whatever the text


def start_message(config: JobConfig, group: GroupTotals, out: Path, device: Device) -> Message:
    """Return the first message to a worker: everything but its segment and its rows."""
    checkpoint = group.model.checkpoint
    return {
        "out": str(out),
        "engine": config.engine,
        "engine_config": asdict(engine_config(config, group.model, device.kind)),
        "format": config.format,
        "save_codes": config.save_codes,
        "keep_failed_audio": config.keep_failed_audio,
        "row_time_limit": config.row_time_limit,
        "split_pause_s": config.split_pause_s,
        "trim_margin_s": config.trim_margin_s if config.trim else None,
        "checks": CheckLimits.of(config.checks, speaks=checkpoint.name not in NOISY).to_dict(),
        "constants": {"model": checkpoint.name, "model_revision": checkpoint.revision, "engine": config.engine},
    }


def engine_config(config: JobConfig, model: ModelGroup, device_kind: str) -> EngineConfig:
    """Return what an engine for one of the run's models is opened with."""
    return EngineConfig(
        model=str(model.checkpoint.path),
        model_revision=model.checkpoint.revision,
        device=device_kind,
        dtype=config.dtype,
        runner=config.runner,
        profile=config.profile,
        code2wav_mode=config.code2wav_mode,
        loop_frames=config.loop_frames,
        placement=config.placement,
        cuda_graph=config.cuda_graph,
        eager=config.eager,
        max_num_seqs=config.max_num_seqs,
        stall_timeout_s=config.stall_timeout,
        cache_dir=str(cache) if (cache := find_cache_folder()) else None,
    )


def row_message(
    planned: PlannedRow, config: JobConfig, spool: ReferenceSpool, reopened: Outcome | None = None
) -> Message:
    """Return what a worker is told of a row; its seeds are those of the attempts that the row may have now.

    `reopened` is the line that put a row back among the pending ones: what it has tried counts on.
    """
    row = planned.row
    tried = list(reopened.attempt_seeds) if reopened else []
    if reopened and reopened.reason is not None and reopened.reason not in NEW_DRAW_HELPS:
        tried = tried[:-1]  # the draw was not at fault: the same again
    reference = None
    if row.ref_audio is not None and planned.reference_key is not None:
        reference = spool.pin(planned.reference_key, row.ref_audio, row.ref_text)
    return {
        "id": row.id,
        "pieces": [_piece_message(planned, number, config, len(tried)) for number in range(len(planned.pieces))],
        "sampling": _sampling_fields(planned.sampling),
        "tried": tried,
        "reference": reference,
        "fingerprint": planned.fingerprint,
        "input_digest": input_digest(planned),
    }


def _piece_message(planned: PlannedRow, number: int, config: JobConfig, tried: int) -> Message:
    return {
        "request": request_fields(planned, number),
        "seeds": piece_seeds(planned, number, config, tried),
        "expected_s": planned.pieces[number].expected_frames / FRAMES_PER_S,
    }


@lru_cache(maxsize=16)
def _sampling_fields(sampling: SamplingParams) -> dict[str, Any]:
    return asdict(sampling)


def piece_seeds(planned: PlannedRow, number: int, config: JobConfig, tried: int = 0) -> list[int]:
    """Return the seeds of the next attempts of a row's piece, counted from 0, after `tried` ones.

    An explicit seed is not changed unless that is asked for, and without sampling a seed changes nothing.
    """
    sampling, explicit = planned.sampling, planned.row.seed
    derive = partial(derive_seed, config.seed, planned.input_id, take=planned.take, piece=number, explicit=explicit)
    if not (sampling.do_sample or sampling.subtalker_dosample):
        return [derive()]
    if explicit is not None and not config.retry_changes_seed:
        return [derive()]
    return [derive(attempt=attempt) for attempt in range(tried, tried + config.attempts)]


def request_fields(planned: PlannedRow, number: int) -> dict[str, Any]:
    """Return the fields of the SpeechRequest of a row's piece, counted from 0, that are plain data.

    All but sampling, seed and reference are.
    """
    row, piece = planned.row, planned.pieces[number]
    return {
        "request_id": piece_id(row.id, number) if planned.is_split else row.id,
        "text": piece.text,
        "task": row.task,
        "max_frames": piece.max_frames,
        "language": row.language,
        "speaker": row.speaker,
        "instruct": row.instruct,
        "x_vector_only": row.x_vector_only,
        "non_streaming": row.non_streaming,
    }
