"""Code2Wav: finished codes to audio. Sequences are cut at the official seams, decoded in pieces, trimmed to the sample.

Seams count from the reference's first frame, since the reference is decoded in front of the row and cut off again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from tts_batch.engine.code2wav.decode_pool import DecodePool, Deliver, HostCopy
from tts_batch.engine.request import SAMPLES_PER_FRAME
from tts_batch.engine.runner import DecodedRow
from tts_batch.model.speech_tokenizer.pieces import cut_pieces


@dataclass(frozen=True, slots=True, eq=False)
class Voiced:
    """A row that left Code2Wav, with arrays of the receiver's own."""

    row: DecodedRow
    codes: NDArray[np.int16]  # [num_frames, 16]
    audio: NDArray[np.float32] | None  # [num_frames * 1920]; None: memory ran out
    code2wav_s: float  # from its last code to its last sample


class Vocoder(Protocol):
    """The Code2Wav stage. Used from one thread; a row leaves it once, by `poll`, `drop` or `clear`."""

    @property
    def busy(self) -> bool:
        """Whether any finished row is still in here."""

    def submit(self, decoded: DecodedRow) -> None:
        """Take a row with all its codes."""

    def poll(self, *, drain: bool) -> list[Voiced]:
        """Start what is worth starting (with `drain`: everything), and return the rows that are complete."""

    def progress(self) -> list[tuple[str, int]]:
        """Every finished row in here, and a number that changes as it goes on."""

    def drop(self, request_id: str) -> bool:
        """Forget a row, wherever it is; False if it is not here."""

    def clear(self) -> None:
        """Forget every row."""


@dataclass(slots=True, eq=False)
class _Row:
    """A row on its way: the audio it has so far, and how many pieces are missing."""

    decoded: DecodedRow
    codes: HostCopy  # int16 [num_frames, 16]
    audio: NDArray[np.float32] | None
    pieces_left: int
    submitted_at_s: float


class Code2Wav:
    """The Vocoder that decodes whole utterances."""

    def __init__(self, pool: DecodePool) -> None:
        self._pool = pool
        self._rows: dict[str, _Row] = {}

    @property
    def busy(self) -> bool:
        return bool(self._rows)

    def submit(self, decoded: DecodedRow) -> None:
        request_id = decoded.prepared.request.request_id
        num_frames, ref_codes = len(decoded.codes), decoded.prepared.ref_codes
        whole = decoded.codes if ref_codes is None else torch.cat([ref_codes.to(decoded.codes), decoded.codes])
        ref_frames = len(whole) - num_frames
        pieces = [piece for piece in cut_pieces(len(whole)) if piece.stop > ref_frames]
        row = self._rows[request_id] = _Row(
            decoded=decoded,
            codes=HostCopy(decoded.codes.to(torch.int16)),
            audio=np.empty(num_frames * SAMPLES_PER_FRAME, dtype=np.float32),
            pieces_left=len(pieces),
            submitted_at_s=time.monotonic(),
        )
        for piece in pieces:
            start, stop = max(piece.start - ref_frames, 0), piece.stop - ref_frames
            self._pool.add(request_id, whole[piece.frames], stop - start, _put_audio(row, start, stop))

    def poll(self, *, drain: bool) -> list[Voiced]:
        self._pool.advance(drain=drain)
        now_s = time.monotonic()
        ended = [row for row in self._rows.values() if row.pieces_left == 0 and row.codes.is_done]
        for row in ended:
            del self._rows[row.decoded.prepared.request.request_id]
        return [Voiced(row.decoded, row.codes.numpy().copy(), row.audio, now_s - row.submitted_at_s) for row in ended]

    def progress(self) -> list[tuple[str, int]]:
        return [(request_id, row.pieces_left) for request_id, row in self._rows.items()]

    def drop(self, request_id: str) -> bool:
        self._pool.drop(request_id)
        return self._rows.pop(request_id, None) is not None

    def clear(self) -> None:
        self._pool.clear()
        self._rows.clear()


def _put_audio(row: _Row, start: int, stop: int) -> Deliver:
    """Puts the audio of the row's frames [start, stop) in its place."""

    def deliver(audio: NDArray[np.float32] | None) -> None:
        row.pieces_left -= 1
        if audio is None:
            row.audio = None
        elif row.audio is not None:
            row.audio[start * SAMPLES_PER_FRAME : stop * SAMPLES_PER_FRAME] = audio

    return deliver
