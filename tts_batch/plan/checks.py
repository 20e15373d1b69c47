"""What a plan finds odd though nothing is wrong: remarks on rows and settings that often end in bad clips."""

from __future__ import annotations

from tts_batch.config import JobConfig
from tts_batch.dataset.audio import LONG_REFERENCE_S, SHORT_REFERENCE_S
from tts_batch.dataset.notes import Notes
from tts_batch.errors import UsageError
from tts_batch.plan.models import ModelGroup
from tts_batch.records import Row

# Characters of transcript for a second of reference. Outside: most likely another text, or text and ref_text swapped.
_MIN_CHARS_PER_S, _MAX_CHARS_PER_S = 0.5, 35.0


def check_engine(engine: str) -> None:
    """Raise UsageError for an engine that there is not. What a factory gives, only its worker can tell."""
    if engine == "vllm":
        raise UsageError("--engine vllm is not in this version: leave it out, or write --engine native.")
    if engine != "native" and ":" not in engine:
        raise UsageError(f"--engine {engine!r} is not one of native, package.module:factory.")


def remark_settings(config: JobConfig, notes: Notes) -> None:
    """Remark on sampling that is known to go wrong."""
    for name in ("temperature", "subtalker_temperature"):
        value = getattr(config, name)
        if value is not None and not 0.3 <= value <= 1.5 and not config.greedy:
            notes.add(
                f"--{name.replace('_', '-')} {value:g} is extreme: clips tend to silence below 0.3, to noise above 1.5"
            )


def remark_row(row: Row, group: ModelGroup, reference_s: float | None, num_pieces: int, notes: Notes) -> None:
    """Remark on a row that will run. `reference_s` is the length of its reference, where known."""
    model = group.checkpoint.config
    if num_pieces > 1 and group.task == "voice_design":
        notes.add("a split text of VoiceDesign: each piece gets a voice of its own, which may be another", row.source)
    if row.instruct is not None and not model.takes_instruct:
        notes.add("instruct is dropped: the 0.6B CustomVoice was not trained to follow one", row.source)
    if reference_s is None:
        return
    if reference_s < SHORT_REFERENCE_S:
        notes.add(f"ref_audio lasts less than {SHORT_REFERENCE_S:g} s: longer ones clone better", row.source)
    if reference_s > LONG_REFERENCE_S:
        notes.add(f"ref_audio lasts more than {LONG_REFERENCE_S:g} s: shorter ones clone better", row.source)
    if row.ref_text is not None and not row.x_vector_only:
        rate = len(row.ref_text) / reference_s
        if not _MIN_CHARS_PER_S <= rate <= _MAX_CHARS_PER_S:
            notes.add(
                "ref_text does not fit the length of ref_audio: is it really what the recording says?", row.source
            )
