"""`plan --deep`: every distinct reference is decoded once, so that none fails in the run."""

from __future__ import annotations

from dataclasses import replace

from tts_batch.dataset.audio import load_reference
from tts_batch.errors import RowError
from tts_batch.plan.rows import PlannedRow
from tts_batch.records import Failure, RefAudio


class ReferenceDecoder:
    """Decodes the references of checked rows and keeps only each one's failure, if any."""

    def __init__(self) -> None:
        self._found: dict[str, Failure | None] = {}

    @property
    def num_decoded(self) -> int:
        """Distinct references so far."""
        return len(self._found)

    def check(self, checked: PlannedRow) -> PlannedRow:
        """Return the row, failed if its reference cannot be decoded or is not usable as a voice."""
        reference, key = checked.row.ref_audio, checked.reference_key
        if reference is None or key is None:
            return checked
        if key not in self._found:
            self._found[key] = _decode(reference)
        failure = self._found[key]
        return checked if failure is None else PlannedRow(replace(checked.row, failure=failure))


def _decode(reference: RefAudio) -> Failure | None:
    try:
        load_reference(reference)
    except RowError as error:
        return Failure(error.reason, error.message)
    return None
