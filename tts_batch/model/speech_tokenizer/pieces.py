"""The pieces of a long decode: 300 frames each, decoded after 25 frames of context.

The official package splits in the same way, and the audio after frame 300 depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass

PIECE_FRAMES = 300
CONTEXT_FRAMES = 25


@dataclass(frozen=True, slots=True)
class Piece:
    """New frames [start, stop) of a sequence; the `context` frames before them are decoded again and dropped."""

    start: int
    stop: int
    context: int

    @property
    def frames(self) -> slice:
        """The frames to decode, context first."""
        return slice(self.start - self.context, self.stop)

    @property
    def num_frames(self) -> int:
        """The number of frames to decode."""
        return self.stop - self.start + self.context


def cut_pieces(num_frames: int) -> list[Piece]:
    """Split a sequence, a reference's frames included, into its pieces, counted from its first frame."""
    return [
        Piece(start, min(start + PIECE_FRAMES, num_frames), min(start, CONTEXT_FRAMES))
        for start in range(0, num_frames, PIECE_FRAMES)
    ]
