"""From a planned row to the message that asks a worker for it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from tts_batch.config import JobConfig
from tts_batch.plan.seeds import derive_seed
from tts_batch.run.channel import Message
from tts_batch.run.references import ReferenceSpool
from tts_batch.run.resume import input_digest

if TYPE_CHECKING:
    from tts_batch.plan.planner import PlannedRow


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
        "request": {
            "request_id": row.id,
            "text": row.text,
            "task": row.task,
            "max_frames": planned.max_frames,
            "language": row.language,
            "speaker": row.speaker,
            "instruct": row.instruct,
            "x_vector_only": row.x_vector_only,
            "non_streaming": row.non_streaming,
        },
        "sampling": asdict(planned.sampling),
        "seeds": [planned.seed, *later],
        "reference": reference,
        "fingerprint": planned.fingerprint,
        "input_digest": input_digest(planned),
    }
