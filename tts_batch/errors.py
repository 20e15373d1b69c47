"""Why a row failed and how a command ended: the closed list of reasons, the exceptions, the exit statuses."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, get_args

Reason = Literal[
    "bad_row",
    "bad_id",
    "duplicate_id",
    "empty_text",
    "bad_text",
    "text_too_long",
    "bad_language",
    "bad_speaker",
    "bad_instruct",
    "bad_seed",
    "wrong_task",
    "ref_missing",
    "ref_unreadable",
    "ref_too_short",
    "ref_too_long",
    "ref_silent",
    "ref_non_finite",
    "ref_text_missing",
    "ref_forbidden",
    "url_refused",
    "codec_budget_exhausted",
    "repetitive_generation",
    "empty_audio",
    "silent_output",
    "long_silence",
    "noise_output",
    "non_finite",
    "ref_leak",
    "too_long_for_text",
    "too_short_for_text",
    "piece_failed",
    "engine_error",
    "stalled",
    "time_limit",
    "out_of_memory",
    "worker_crash",
    "write_failed",
    "cancelled",
]
"""The closed list of row reasons. A new one is a change of contract: manifests and scripts depend on it."""

REASONS: tuple[Reason, ...] = get_args(Reason)


class ExitStatus(IntEnum):
    """What a command's exit status says. Where several hold, the precedence is 5, 4, 3, 0."""

    OK = 0  # every row is ok
    BUG = 1  # an exception nobody foresaw
    USAGE = 2  # usage or configuration, or a table without rows
    SOME_FAILED = 3  # finished, some rows failed (plan, verify: there are findings)
    STOPPED = 4  # stopped by a signal; the same command resumes
    CANNOT_CONTINUE = 5  # disk full, no model, the engine cannot start
    INTERRUPTED = 130  # a second interrupt: ended at once


class TTSBatchError(Exception):
    """Base of the errors a user can meet. Its text is one sentence: what, which value, what is allowed, what next."""

    exit_status: ExitStatus = ExitStatus.BUG


class UsageError(TTSBatchError):
    """An option, a recipe or a table that cannot be used as given."""

    exit_status = ExitStatus.USAGE


class CannotContinueError(TTSBatchError):
    """The run cannot go on: no model, no engine, no disk. What is done stays done."""

    exit_status = ExitStatus.CANNOT_CONTINUE


class RowError(TTSBatchError):
    """One row cannot be made. It becomes that row's failure record; other rows are untouched.

    `passing`: what stood in the way, a disk that cannot be read, say, may be gone a little later.
    """

    exit_status = ExitStatus.SOME_FAILED

    def __init__(self, reason: Reason, message: str, passing: bool = False) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.message = message
        self.passing = passing

    def __reduce__(self) -> tuple[type[RowError], tuple[Reason, str, bool]]:
        return RowError, (self.reason, self.message, self.passing)
