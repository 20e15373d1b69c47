"""Code2Wav: finished codes to audio. Sequences are cut at the official seams, decoded in pieces, trimmed to the sample.

Seams count from the reference's first frame, since the reference is decoded in front of the row and cut off again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tts_batch.engine.code2wav.code2wav import clip_result
from tts_batch.engine.code2wav.decode_pool import DecodePool, Deliver, HostCopy
from tts_batch.engine.request import SAMPLES_PER_FRAME, SpeechResult
from tts_batch.engine.runner import EngineRow
from tts_batch.model.speech_tokenizer.pieces import cut_pieces


@dataclass(slots=True, eq=False)
class _Utterance:
    """A row that is being decoded: the audio it has so far, and how many pieces are missing."""

    row: EngineRow
    codes: HostCopy  # int16 [num_frames, 16]
    audio: NDArray[np.float32] | None
    pieces_left: int
    submitted_at_s: float

    @property
    def is_done(self) -> bool:
        return self.pieces_left == 0 and self.codes.is_done


class UtteranceCode2Wav:
    """The Code2Wav that decodes whole utterances."""

    def __init__(self, pool: DecodePool) -> None:
        self._pool = pool
        self._utterances: dict[str, _Utterance] = {}

    @property
    def busy(self) -> bool:
        return bool(self._utterances)

    def submit(self, row: EngineRow) -> None:
        num_frames, ref_codes = len(row.codes), row.ref_codes
        whole = row.codes if ref_codes is None else torch.cat([ref_codes.to(row.codes), row.codes])
        ref_frames = len(whole) - num_frames
        pieces = [piece for piece in cut_pieces(len(whole)) if piece.stop > ref_frames]
        utterance = self._utterances[row.request_id] = _Utterance(
            row=row,
            codes=HostCopy(row.codes.to(torch.int16)),
            audio=np.empty(num_frames * SAMPLES_PER_FRAME, dtype=np.float32),
            pieces_left=len(pieces),
            submitted_at_s=time.monotonic(),
        )
        for piece in pieces:
            start, stop = max(piece.start - ref_frames, 0), piece.stop - ref_frames
            self._pool.add(row.request_id, whole[piece.frames], stop - start, _put_audio(utterance, start, stop))

    def poll(self, *, drain: bool) -> list[SpeechResult]:
        self._pool.advance(drain=drain)
        done = [utterance for utterance in self._utterances.values() if utterance.is_done]
        for utterance in done:
            del self._utterances[utterance.row.request_id]
        return [clip_result(u.row, u.codes.numpy().copy(), u.audio, u.submitted_at_s) for u in done]

    def progress(self) -> list[tuple[str, int]]:
        return [(request_id, utterance.pieces_left) for request_id, utterance in self._utterances.items()]

    def drop(self, request_id: str) -> bool:
        self._pool.drop(request_id)
        return self._utterances.pop(request_id, None) is not None

    def clear(self) -> None:
        self._pool.clear()
        self._utterances.clear()


def _put_audio(utterance: _Utterance, start: int, stop: int) -> Deliver:
    """Puts the audio of the frames [start, stop) in its place."""

    def deliver(audio: NDArray[np.float32] | None) -> None:
        utterance.pieces_left -= 1
        if audio is None:
            utterance.audio = None
        elif utterance.audio is not None:
            utterance.audio[start * SAMPLES_PER_FRAME : stop * SAMPLES_PER_FRAME] = audio

    return deliver
