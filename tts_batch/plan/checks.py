"""The task of a row, whether its model can do it, and notes on rows and settings that often give bad clips."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tts_batch.choices import Task
from tts_batch.config import JobConfig
from tts_batch.dataset.audio import LONG_REFERENCE_S, SHORT_REFERENCE_S
from tts_batch.dataset.cells import quote
from tts_batch.dataset.notes import Notes
from tts_batch.engine.registry import has_module
from tts_batch.engine.vllm.settings import MAX_MODEL_LEN
from tts_batch.engine.vllm.versions import find_problem, find_versions
from tts_batch.errors import RowError, UsageError
from tts_batch.model.config import ModelConfig
from tts_batch.records import Row

if TYPE_CHECKING:
    from tts_batch.plan.models import ModelGroup

DISPLAY_NAME: dict[Task, str] = {"base": "Base", "custom_voice": "CustomVoice", "voice_design": "VoiceDesign"}

LONG_TEXT_S = 60.0
TINY_LONG_TEXT_S = 18.0  # about 40 words, five sentences: it was trained on nothing longer
_NOT_ENGLISH = re.compile(r"(?![A-Za-z])[^\W\d_]")

# Characters of transcript for a second of reference. Outside: most likely another text, or text and ref_text swapped.
_MIN_CHARS_PER_S, _MAX_CHARS_PER_S = 0.5, 35.0


def check_engine(config: JobConfig, notes: Notes) -> None:
    """Raise UsageError for an unknown engine, or one that lacks what is asked for; note what else it lacks.

    A factory itself is looked for where it is called, in its worker.
    """
    engine = config.engine
    if engine == "vllm":
        _check_vllm(config, notes)
    elif engine != "native" and ":" not in engine:
        raise UsageError(f"--engine {engine!r} is not one of native, vllm, package.module:factory.")
    module = engine.partition(":")[0]
    if ":" in engine and not has_module(module):
        raise UsageError(
            f"--engine {engine!r}: there is no module {module!r} in the working folder or among the installed packages."
        )


def _check_vllm(config: JobConfig, notes: Notes) -> None:
    for is_asked, option, lack in (
        (config.device not in ("auto", "cuda"), f"--device {config.device}", "runs on CUDA alone"),
        (config.dtype == "float32", "--dtype float32", "computes in bfloat16 alone"),
        (config.save_codes, "--save-codes", "returns no codes"),
        (bool(config.loop_frames), "--loop-frames", "does not look for loops"),
    ):
        if is_asked:
            raise UsageError(f"--engine vllm {lack}: leave out {option}, or use --engine native.")
    if (problem := find_problem(find_versions())) is not None:
        notes.add(f"--engine vllm cannot start here: {problem.rstrip('.')}")
    notes.add(
        "--engine vllm returns no codes, does not end a loop before its budget, and takes at most "
        f"{MAX_MODEL_LEN} positions of prompt and frames together"
    )


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


def note_settings(config: JobConfig, notes: Notes) -> None:
    """Add a note on sampling that is known to go wrong."""
    for name in ("temperature", "subtalker_temperature"):
        value = getattr(config, name)
        if value is not None and not 0.3 <= value <= 1.5 and not config.greedy:
            notes.add(
                f"--{name.replace('_', '-')} {value:g} is extreme: clips tend to silence below 0.3, to noise above 1.5"
            )


def note_length(row: Row, group: ModelGroup, pieces_s: Sequence[float], notes: Notes) -> None:
    """Add a note on a text that is long, or split; `pieces_s`: the expected seconds of its pieces, most often one."""
    if group.name == "tiny" and max(pieces_s) > TINY_LONG_TEXT_S:
        notes.add("tiny is hard to understand beyond about 40 words: --split-text 100 speaks pieces", row.source)
    elif max(pieces_s) > LONG_TEXT_S:
        notes.add(f"a text of more than {LONG_TEXT_S:g} s: the pace may drift; --split-text speaks pieces", row.source)
    if len(pieces_s) > 1 and group.task == "voice_design":
        notes.add("a split text of VoiceDesign: each piece gets its own voice, which may differ", row.source)


def note_row(row: Row, group: ModelGroup, reference_s: float | None, notes: Notes) -> None:
    """Add a note on a row that will run. `reference_s` is the length of its reference, where known."""
    model = group.checkpoint.config if group.checkpoint else None
    if model and row.instruct is not None and not model.takes_instruct:
        notes.add("instruct is dropped: the 0.6B CustomVoice was not trained to follow one", row.source)
    if model and model.supported_languages == ("auto", "english") and _NOT_ENGLISH.search(row.text):
        notes.add("the text has letters that English lacks, and the model speaks only English", row.source)
    if group.name == "tiny" and group.task == "base" and row.non_streaming is False:
        notes.add("clones of tiny are hard to understand where non_streaming is false: leave it out", row.source)
    if reference_s is None:
        return
    if reference_s < SHORT_REFERENCE_S:
        notes.add(f"ref_audio lasts less than {SHORT_REFERENCE_S:g} s: longer ones clone better", row.source)
    if reference_s > LONG_REFERENCE_S:
        notes.add(f"ref_audio lasts more than {LONG_REFERENCE_S:g} s: shorter ones clone better", row.source)
    if row.ref_text is not None and not row.x_vector_only:
        rate = len(row.ref_text) / reference_s
        if not _MIN_CHARS_PER_S <= rate <= _MAX_CHARS_PER_S:
            notes.add("ref_text does not fit the length of ref_audio: check that it is the transcript", row.source)
