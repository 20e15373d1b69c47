"""What becomes of a result: held to the checks, trimmed where that is asked for, and joined where a text is split."""

from __future__ import annotations

from dataclasses import replace

from tts_batch.engine.request import SpeechRequest, SpeechResult
from tts_batch.ipc.channel import Message
from tts_batch.records import Failure
from tts_batch.run.references import Tails
from tts_batch.worker.checker import Checkers, Question, Rules
from tts_batch.worker.checks import CheckLimits, Examined
from tts_batch.worker.pieces import describe_pieces, examine_joined, join
from tts_batch.worker.rows import ActivePiece, ActiveRow


class Judge:
    """The run's settings for all of that, from a worker's start message. It may be used from any thread."""

    def __init__(self, start: Message, num_threads: int) -> None:
        """`num_threads`: how many threads examine."""
        self._limits = CheckLimits(**start["checks"])
        rules = Rules(self._limits, start["trim_margin_s"], start["format"], start["save_codes"])
        self._checkers = Checkers(rules, num_threads)
        self._tails = Tails(wanted=self._limits.ref_correlation is not None)
        self._pause_s: float = start["split_pause_s"]
        self.time_is_over = Failure("time_limit", f"It was not done after {start['row_time_limit'] or 0:g} s.")

    def expect(self, request: SpeechRequest) -> None:
        """The engine gets `request`, and its clip will be here soon."""
        if not request.x_vector_only:
            self._tails.read_ahead(request.reference)

    def examine(self, piece: ActivePiece, result: SpeechResult) -> tuple[SpeechResult, Examined]:
        """Return the result, trimmed if that is asked for, and what was found in it."""
        if piece.row.overtime and result.finish_reason == "cancelled":
            return result, Examined(piece.blame(self.time_is_over))
        sounds = result.audio is not None and not piece.request.x_vector_only
        tail = self._tails.of(piece.request.reference) if sounds else None
        is_whole = not piece.row.is_split
        answer = self._checkers.ask(Question(result, piece.request.max_frames, piece.expected_s, tail, is_whole))
        if answer.trimmed is not None:
            result = replace(result, audio=answer.trimmed)
        failure = answer.examined.failure and piece.blame(answer.examined.failure)
        return result, replace(answer.examined, failure=failure)

    def close(self) -> None:
        """Nothing is examined any more."""
        self._checkers.close()

    def join(self, row: ActiveRow) -> tuple[SpeechResult, Examined]:
        """Return the row's result and what was found in it, of pieces that are all good."""
        results = [piece.result for piece in row.pieces if piece.result is not None]
        joined = join(results, self._pause_s)
        figures = [piece.checks for piece in row.pieces]
        examined = examine_joined(joined, results, figures, row.max_frames, row.expected_s, self._limits)
        if examined.failure is not None:
            return joined, examined
        told = describe_pieces([piece.request for piece in row.pieces], results, self._pause_s)
        return joined, replace(examined, checks={**examined.checks, "pieces": told})
