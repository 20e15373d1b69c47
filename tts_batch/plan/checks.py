"""Remarks of a plan on valid rows and settings that often give bad clips."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tts_batch.config import JobConfig
from tts_batch.dataset.audio import LONG_REFERENCE_S, SHORT_REFERENCE_S
from tts_batch.dataset.notes import Notes
from tts_batch.engine.vllm.settings import MAX_MODEL_LEN
from tts_batch.engine.vllm.versions import find_problem, find_versions
from tts_batch.errors import UsageError
from tts_batch.plan.models import ModelGroup
from tts_batch.records import Row

LONG_TEXT_S = 60.0
TINY_LONG_TEXT_S = 18.0  # about 40 words, five sentences: it was trained on nothing longer
_NOT_ENGLISH = re.compile(r"(?![A-Za-z])[^\W\d_]")

# Characters of transcript for a second of reference. Outside: most likely another text, or text and ref_text swapped.
_MIN_CHARS_PER_S, _MAX_CHARS_PER_S = 0.5, 35.0


def check_engine(config: JobConfig, notes: Notes) -> None:
    """Raise UsageError for an unknown engine, or one that lacks what is asked for; remark on what else it lacks.

    A factory is checked where it is called, in its worker.
    """
    if config.engine == "vllm":
        _check_vllm(config, notes)
    elif config.engine != "native" and ":" not in config.engine:
        raise UsageError(f"--engine {config.engine!r} is not one of native, vllm, package.module:factory.")


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


def remark_settings(config: JobConfig, notes: Notes) -> None:
    """Remark on sampling that is known to go wrong."""
    for name in ("temperature", "subtalker_temperature"):
        value = getattr(config, name)
        if value is not None and not 0.3 <= value <= 1.5 and not config.greedy:
            notes.add(
                f"--{name.replace('_', '-')} {value:g} is extreme: clips tend to silence below 0.3, to noise above 1.5"
            )


def remark_length(row: Row, group: ModelGroup, pieces_s: Sequence[float], notes: Notes) -> None:
    """Remark on a text that is long, or split; `pieces_s` are the expected seconds of its pieces, most often one."""
    if group.name == "tiny" and max(pieces_s) > TINY_LONG_TEXT_S:
        notes.add("tiny is hard to understand beyond about 40 words: --split-text 100 speaks pieces", row.source)
    elif max(pieces_s) > LONG_TEXT_S:
        notes.add(f"a text of more than {LONG_TEXT_S:g} s: the pace may drift; --split-text speaks pieces", row.source)
    if len(pieces_s) > 1 and group.task == "voice_design":
        notes.add("a split text of VoiceDesign: each piece gets its own voice, which may differ", row.source)


def remark_row(row: Row, group: ModelGroup, reference_s: float | None, notes: Notes) -> None:
    """Remark on a row that will run. `reference_s` is the length of its reference, where known."""
    model = group.checkpoint.config
    if row.instruct is not None and not model.takes_instruct:
        notes.add("instruct is dropped: the 0.6B CustomVoice was not trained to follow one", row.source)
    if model.supported_languages == ("auto", "english") and _NOT_ENGLISH.search(row.text):
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
