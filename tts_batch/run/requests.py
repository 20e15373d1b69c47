"""What the parent tells a worker: how to start, and what to make."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tts_batch.config import JobConfig
from tts_batch.engine.request import FRAMES_PER_S, EngineConfig, SamplingParams
from tts_batch.plan.seeds import derive_seed
from tts_batch.run.attempts import NEW_DRAW_HELPS
from tts_batch.run.channel import Message
from tts_batch.run.checks import CheckLimits
from tts_batch.run.devices import Device
from tts_batch.run.index import input_digest
from tts_batch.run.journal import Outcome
from tts_batch.run.references import ReferenceSpool

if TYPE_CHECKING:
    from tts_batch.plan.models import ModelGroup
    from tts_batch.plan.planner import GroupTotals
    from tts_batch.plan.rows import PlannedRow

TINY = ("tiny", "tiny-random")  # they make noise of any length, whatever the text


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
        "checks": CheckLimits.of(config.checks, speaks=checkpoint.name not in TINY).to_dict(),
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
        "request": request_fields(planned),
        "sampling": _sampling_fields(planned.sampling),
        "seeds": _seeds(planned, config, len(tried)),
        "tried": tried,
        "expected_s": planned.expected_frames / FRAMES_PER_S,
        "reference": reference,
        "fingerprint": planned.fingerprint,
        "input_digest": input_digest(planned),
    }


@lru_cache(maxsize=16)
def _sampling_fields(sampling: SamplingParams) -> dict[str, Any]:
    return asdict(sampling)


def _seeds(planned: PlannedRow, config: JobConfig, tried: int) -> list[int]:
    """Return the seeds of the row's next attempts.

    An explicit seed is not changed unless that is asked for, and without sampling a seed changes nothing.
    """
    sampling, explicit = planned.sampling, planned.row.seed
    if not (sampling.do_sample or sampling.subtalker_dosample):
        return [planned.seed]
    if explicit is not None and not config.retry_changes_seed:
        return [planned.seed]
    derive = partial(derive_seed, config.seed, planned.input_id, take=planned.take, explicit=explicit)
    return [derive(attempt=attempt) for attempt in range(tried, tried + config.attempts)]


def request_fields(planned: PlannedRow) -> dict[str, Any]:
    """Return the fields of a row's SpeechRequest that are plain data: all but sampling, seed and reference."""
    row = planned.row
    return {
        "request_id": row.id,
        "text": row.text,
        "task": row.task,
        "max_frames": planned.max_frames,
        "language": row.language,
        "speaker": row.speaker,
        "instruct": row.instruct,
        "x_vector_only": row.x_vector_only,
        "non_streaming": row.non_streaming,
    }
