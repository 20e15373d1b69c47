"""Which requests an engine has lost: it goes on, asks for more, and never answers them."""

from __future__ import annotations

from dataclasses import dataclass

ASKED_WITHIN_S = 5.0  # an engine that has not asked for so long is busy, or hangs: that is the parent's to judge


@dataclass(frozen=True, slots=True)
class _Pulled:
    at_s: float
    max_frames: int
    num_answers: int  # of the engine, to other requests, until then


class Answers:
    """What the engine holds, and when it answered; times are seconds of one clock. For whoever has the worker's lock.

    Lost is a request without an answer for `limit_s`, and `limit_frame_s` more for each frame of the largest budget in
    the engine's hands. The time counts from the engine's last answer to anything, since it may do one request after
    another; or from the pull, once it has answered twice as many later ones as it ever held.
    """

    def __init__(self, limit_s: float, limit_frame_s: float) -> None:
        self._limit_s, self._limit_frame_s = limit_s, limit_frame_s
        self._held: dict[str, _Pulled] = {}
        self._num_answers = self._most_held = 0
        self._answered_at_s = self._asked_at_s = 0.0
        self._is_receiving = False

    def ask(self, now_s: float) -> None:
        """The engine asks for a request."""
        self._asked_at_s = now_s

    def pull(self, request_id: str, max_frames: int, now_s: float) -> None:
        """The engine gets one."""
        self._held[request_id] = _Pulled(now_s, max_frames, self._num_answers)
        self._most_held = max(self._most_held, len(self._held))

    def receive(self, request_id: str) -> None:
        """The engine answers; until `received` it is the receiver who keeps it waiting, and nothing counts as lost."""
        self._is_receiving = True
        self._num_answers += self._held.pop(request_id, None) is not None

    def received(self, now_s: float) -> None:
        """The receiver is ready for the next answer."""
        self._is_receiving = False
        self._answered_at_s = now_s

    def take_lost(self, now_s: float) -> list[str]:
        """Return the requests that are lost now, and count them as answered."""
        if self._is_receiving or now_s - self._asked_at_s > ASKED_WITHIN_S or not self._held:
            return []
        limit_s = self.limit_s
        lost = [name for name, pulled in self._held.items() if now_s - self._waits_since_s(pulled) > limit_s]
        for name in lost:
            del self._held[name]
        return lost

    @property
    def limit_s(self) -> float:
        """How long a request may wait now."""
        budgets = (pulled.max_frames for pulled in self._held.values())
        return self._limit_s + self._limit_frame_s * max(budgets, default=0)

    def _waits_since_s(self, pulled: _Pulled) -> float:
        is_overtaken = self._num_answers - pulled.num_answers > 2 * self._most_held
        return pulled.at_s if is_overtaken else max(pulled.at_s, self._answered_at_s)
