"""The pieces of a long decode."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tts_batch.model.speech_tokenizer.pieces import Piece, cut_pieces


@given(st.integers(0, 2000))
def test_every_frame_is_new_in_exactly_one_piece(num_frames: int) -> None:
    assert [frame for piece in cut_pieces(num_frames) for frame in range(piece.start, piece.stop)] == list(
        range(num_frames)
    )


def test_the_official_seams() -> None:
    assert cut_pieces(300) == [Piece(0, 300, 0)]
    assert cut_pieces(601) == [Piece(0, 300, 0), Piece(300, 600, 25), Piece(600, 601, 25)]
    assert [(piece.frames, piece.num_frames) for piece in cut_pieces(601)] == [
        (slice(0, 300), 300),
        (slice(275, 600), 325),
        (slice(575, 601), 26),
    ]
