"""Which requests an engine has lost: it goes on, returns others, and never these."""

from __future__ import annotations

from dataclasses import dataclass

from tts_batch.ipc.messages import Deadlines


@dataclass(frozen=True, slots=True)
class _Pending:
    since_s: float
    max_frames: int
    num_answers: int  # of the engine, to other requests, until then


class PendingRequests:
    """What the engine holds, and how long it has owed an answer to each; times are seconds of one clock.

    Lost is a request without an answer for `answer_s`, and `answer_frame_s` more for each frame of the largest budget
    in the engine's hands. The time counts from the engine's last answer to anything, since it may do one request after
    another; or from the request, once it has answered twice as many later ones as it ever held.
    """

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._held: dict[str, _Pending] = {}
        self._num_answers = self._most_held = 0
        self._answered_at_s = 0.0

    def add(self, request_id: str, max_frames: int, now_s: float) -> None:
        """The engine gets a request."""
        self._held[request_id] = _Pending(now_s, max_frames, self._num_answers)
        self._most_held = max(self._most_held, len(self._held))

    def answer(self, request_id: str, now_s: float) -> None:
        """The engine has returned a result."""
        self._num_answers += self._held.pop(request_id, None) is not None
        self._answered_at_s = now_s

    def excuse(self, now_s: float) -> None:
        """The engine was not asked for results: none is late."""
        self._answered_at_s = now_s

    def take_lost(self, now_s: float) -> list[str]:
        """Return the requests that are lost now, and count them as answered."""
        if not self._held:
            return []
        limit_s = self.limit_s
        lost = [name for name, pending in self._held.items() if now_s - self._waits_since_s(pending) > limit_s]
        for name in lost:
            del self._held[name]
        return lost

    @property
    def limit_s(self) -> float:
        """How long a request may wait now."""
        budgets = (pending.max_frames for pending in self._held.values())
        return self._deadlines.answer_s + self._deadlines.answer_frame_s * max(budgets, default=0)

    def _waits_since_s(self, pending: _Pending) -> float:
        is_overtaken = self._num_answers - pending.num_answers > 2 * self._most_held
        return pending.since_s if is_overtaken else max(pending.since_s, self._answered_at_s)
