"""What the parent tells a worker: how to start, and what to make. And the record of a row that no worker survived."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tts_batch.config import JobConfig
from tts_batch.engine.request import EngineConfig
from tts_batch.errors import Reason
from tts_batch.plan.seeds import derive_seed
from tts_batch.run.channel import Message
from tts_batch.run.devices import Device
from tts_batch.run.index import input_digest
from tts_batch.run.journal import Outcome
from tts_batch.run.references import ReferenceSpool

if TYPE_CHECKING:
    from tts_batch.plan.models import ModelGroup
    from tts_batch.plan.planner import GroupTotals
    from tts_batch.plan.rows import PlannedRow


def start_message(config: JobConfig, group: GroupTotals, out: Path, device: Device) -> Message:
    """Return the first message to a worker: everything but its segment and its rows."""
    checkpoint = group.model.checkpoint
    return {
        "out": str(out),
        "engine": config.engine,
        "engine_config": asdict(engine_config(config, group.model, device.kind)),
        "save_codes": config.save_codes,
        "keep_failed_audio": config.keep_failed_audio,
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
    )


def row_message(planned: PlannedRow, config: JobConfig, spool: ReferenceSpool) -> Message:
    """Return the message; its seeds are those of the attempts that the row may have.

    An explicit seed is never changed, so such a row has one attempt.
    """
    row = planned.row
    attempts = config.attempts if row.seed is None else 1
    later = [derive_seed(config.seed, row.id, attempt=attempt) for attempt in range(1, attempts)]
    reference = None
    if row.ref_audio is not None and planned.reference_key is not None:
        reference = spool.pin(planned.reference_key, row.ref_audio, row.ref_text)
    return {
        "type": "row",
        "request": request_fields(planned),
        "sampling": asdict(planned.sampling),
        "seeds": [planned.seed, *later],
        "reference": reference,
        "fingerprint": planned.fingerprint,
        "input_digest": input_digest(planned),
    }


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


def killer_outcome(planned: PlannedRow, reason: Reason, message: str) -> Outcome:
    """Return the record of a row that ended its workers instead of itself."""
    return Outcome(
        id=planned.row.id,
        fingerprint=planned.fingerprint,
        input_digest=input_digest(planned),
        status="failed",
        reason=reason,
        message=message,
        max_frames=planned.max_frames,
        attempts=1,
        seed=planned.seed,
        attempt_seeds=(planned.seed,),
    )
