"""The task of a row, and whether a checkpoint can do it."""

from __future__ import annotations

from tts_batch.choices import Task
from tts_batch.dataset.cells import quote
from tts_batch.errors import RowError
from tts_batch.model.config import ModelConfig
from tts_batch.records import Row

DISPLAY_NAME: dict[Task, str] = {"base": "Base", "custom_voice": "CustomVoice", "voice_design": "VoiceDesign"}


def task_of(row: Row, fixed: Task | None) -> Task:
    """Return the row's task: its own, else the model's (`fixed`), else the one that its columns fit.

    Raises RowError(wrong_task) when the row names another task than the model's.
    """
    if row.task is not None and fixed is not None and row.task != fixed:
        raise RowError("wrong_task", f"task is {row.task}, but the model is a {DISPLAY_NAME[fixed]} checkpoint.")
    if row.task is not None or fixed is not None:
        return row.task or fixed or "custom_voice"
    if row.ref_audio is not None or row.ref_text is not None:
        return "base"
    return "custom_voice" if row.speaker is not None or row.instruct is None else "voice_design"


def check_task(row: Row, model: ModelConfig) -> None:
    """Raise RowError when the model would ignore a column of the row, or the row lacks one that the model needs.

    An ignored column gives another voice than the table's, which is noticed only when the clips are used.
    """
    if row.language is not None and row.language not in model.supported_languages:
        known = ", ".join(name for name in model.supported_languages if name != "auto")
        raise RowError("bad_language", f"language is {row.language}, and the model speaks only {known}.")
    match model.kind:
        case "base":
            _check_base(row)
        case "custom_voice":
            _reject(row, "ref_audio", "CustomVoice speaks with its own speakers")
            _check_speaker(row, model)
        case _:
            _reject(row, "ref_audio", "VoiceDesign makes its voice from the instruct")
            _reject(row, "speaker", "VoiceDesign makes its voice from the instruct")
            if row.instruct is None:
                raise RowError("bad_instruct", "VoiceDesign needs a description of the voice: fill instruct.")


def _check_base(row: Row) -> None:
    _reject(row, "speaker", "Base clones a recording")
    _reject(row, "instruct", "Base takes no instructions")
    if row.ref_audio is None:
        raise RowError("ref_missing", "Base clones a recording, and the row has no ref_audio.")
    if row.ref_text is None and not row.x_vector_only:
        raise RowError(
            "ref_text_missing",
            "ref_text is empty: give the transcript of ref_audio, or set x_vector_only for the timbre alone.",
        )


def _check_speaker(row: Row, model: ModelConfig) -> None:
    if row.speaker in model.speakers:
        return
    known = ", ".join(sorted(model.speakers))
    if row.speaker is None:
        raise RowError("bad_speaker", f"the row has no speaker: fill speaker or give --speaker, one of {known}.")
    raise RowError("bad_speaker", f"speaker {quote(row.speaker)} is not one of {known}.")


def _reject(row: Row, column: str, because: str) -> None:
    if getattr(row, column) is not None:
        raise RowError(
            "wrong_task",
            f"{column} is given, but {because} and would ignore it: clear it, or choose a task and model that take it.",
        )
