"""The pieces that a worker has to make: which wait, which its engine has, which are to be tried again."""

from __future__ import annotations

from collections import deque

from tts_batch.worker.rows import ActivePiece, ActiveRow


class WorkQueue:
    """From a row's arrival to its end. It has no lock of its own: whoever uses it from several threads holds one."""

    def __init__(self) -> None:
        self._waiting: deque[ActivePiece] = deque()
        self._again: deque[ActivePiece] = deque()
        self._active: dict[str, ActivePiece] = {}  # pulled and not ended
        self._answered: set[ActivePiece] = set()  # those that the engine does not have: examined, or in `_again`
        self._dropped: set[str] = set()  # what the engine still has of rows that have ended

    def __bool__(self) -> bool:
        """Whether a row has not ended."""
        return bool(self._waiting or self._active)

    def add(self, row: ActiveRow) -> None:
        self._waiting.extend(row.pieces)

    def drop_waiting(self, *, but_begun: bool = False) -> None:
        """Drop what was not pulled; with `but_begun` only of rows of which nothing was."""
        self._waiting = deque(piece for piece in self._waiting if but_begun and piece.row.began)

    def pull(self, *, again: bool = True) -> ActivePiece | None:
        """Return what to make next, if anything; without `again`, nothing that was tried before."""
        if self._again and again:
            piece = self._again.popleft()
        elif self._waiting:
            piece = self._waiting.popleft()
        else:
            return None
        self._active[piece.id] = piece
        self._answered.discard(piece)
        return piece

    @property
    def is_idle(self) -> bool:
        """Whether the engine has nothing, and nothing is there for it."""
        return not (self._waiting or self._again) and len(self._answered) == len(self._active)

    @property
    def may_grow(self) -> bool:
        """Whether something that the engine has, or has just answered, may be tried again."""
        return any(piece.may_try_again for piece in self._active.values())

    @property
    def active(self) -> list[ActivePiece]:
        """Pulled and not ended: what the engine has, what is examined, and what it is to pull again."""
        return list(self._active.values())

    @property
    def in_engine(self) -> list[ActivePiece]:
        return [piece for piece in self._active.values() if piece not in self._answered]

    def find(self, request_id: str) -> ActivePiece | None:
        """Return the piece that the engine has under this id."""
        piece = self._active.get(request_id)
        return None if piece in self._answered else piece

    def answer(self, request_id: str) -> ActivePiece | None:
        """Return the piece that the engine has under this id. It has it no longer: a second answer finds nothing."""
        piece = self.find(request_id)
        if piece is not None:
            self._answered.add(piece)
        return piece

    def is_answered(self, piece: ActivePiece) -> bool:
        """Whether the piece has an answer that counts: its row has not ended meanwhile."""
        return piece in self._answered

    def take_dropped(self, request_id: str) -> bool:
        """Say whether the engine had this of a row that has ended, and count it as answered."""
        was_dropped = request_id in self._dropped
        self._dropped.discard(request_id)
        return was_dropped

    def end(self, piece: ActivePiece) -> None:
        """The piece is made, or its row fails with it."""
        del self._active[piece.id]
        self._answered.discard(piece)

    def try_again(self, pieces: list[ActivePiece]) -> None:
        for piece in pieces:
            piece.result = None
            self._active[piece.id] = piece
            self._answered.add(piece)
            self._again.append(piece)

    def forget(self, row: ActiveRow) -> list[str]:
        """Forget what is left of a row that ends, and return what the engine has of it: nobody waits for that now."""
        useless = [piece.id for piece in row.pieces if self.find(piece.id)]
        for piece in row.pieces:
            self._active.pop(piece.id, None)
            self._answered.discard(piece)
            piece.result = None  # row and pieces hold each other: its audio would wait for a full garbage collection
        if row.is_split:
            self._again = deque(piece for piece in self._again if piece.row is not row)
            self._waiting = deque(piece for piece in self._waiting if piece.row is not row)
        self._dropped.update(useless)
        return useless
