"""The reasons of failed rows (a closed list), the exceptions of the toolkit, and the exit statuses of commands."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, get_args

InputReason = Literal[
    "bad_row", "bad_id", "duplicate_id", "empty_text", "bad_text", "text_too_long", "bad_language", "bad_speaker",
    "bad_instruct", "bad_seed", "wrong_task",
]  # fmt: skip
"""The row itself, or what it asks for."""

ReferenceReason = Literal[
    "ref_missing", "ref_unreadable", "ref_too_short", "ref_too_long", "ref_silent", "ref_non_finite",
    "ref_text_missing", "ref_forbidden", "url_refused",
]  # fmt: skip
"""The recording of its voice."""

ClipReason = Literal[
    "codec_budget_exhausted", "repetitive_generation", "empty_audio", "silent_output", "long_silence", "noise_output",
    "non_finite", "ref_leak", "too_long_for_text", "too_short_for_text",
]  # fmt: skip
"""The clip that was made of it: another seed may give a better one."""

RunReason = Literal[
    "piece_failed", "engine_error", "stalled", "time_limit", "out_of_memory", "worker_crash", "write_failed",
    "cancelled",
]  # fmt: skip
"""What happened while it was made."""

Reason = Literal[InputReason, ReferenceReason, ClipReason, RunReason]
"""The closed list of row reasons. A new one is a change of contract: manifests and scripts depend on it."""

REASONS: tuple[Reason, ...] = get_args(Reason)


class ExitStatus(IntEnum):
    """How a command ended. Where several statuses apply, the precedence is 5, 4, 3, 0."""

    OK = 0  # every row is ok
    BUG = 1  # an unexpected exception
    USAGE = 2  # usage or configuration, or a table without rows
    SOME_FAILED = 3  # finished, some rows failed (plan, verify, doctor: problems were found)
    STOPPED = 4  # stopped by a signal; the same command resumes
    CANNOT_CONTINUE = 5  # disk full, no model, the engine cannot start
    INTERRUPTED = 130  # a second interrupt: ended at once


class TTSBatchError(Exception):
    """Base of all errors for users. The text is one sentence: what, which value, what is allowed, what to do next."""

    exit_status: ExitStatus = ExitStatus.BUG


class UsageError(TTSBatchError):
    """An option, a recipe or a table is invalid."""

    exit_status = ExitStatus.USAGE


class CannotContinueError(TTSBatchError):
    """The run cannot continue: no model, no engine, or no space on the disk. Finished rows stay finished."""

    exit_status = ExitStatus.CANNOT_CONTINUE


class RowError(TTSBatchError):
    """One row cannot be made. It becomes that row's `Failure`; other rows are unaffected.

    `transient`: the cause may be temporary, such as a disk that cannot be read at the moment.
    """

    exit_status = ExitStatus.SOME_FAILED

    def __init__(self, reason: Reason, message: str, transient: bool = False) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.message = message
        self.transient = transient

    def __reduce__(self) -> tuple[type[RowError], tuple[Reason, str, bool]]:
        return RowError, (self.reason, self.message, self.transient)
