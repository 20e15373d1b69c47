"""Code2Wav: finished codes to audio, cut at the official seams, trimmed to the sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tts_batch.engine.request import SAMPLES_PER_FRAME

if TYPE_CHECKING:
    from tts_batch.model.speech_tokenizer import SpeechTokenizer
    from tts_batch.model.speech_tokenizer.pieces import Piece


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """One piece of a row: where to read the codes and where the audio goes."""

    row: int
    codes: Tensor  # [ref_frames + num_frames, 16]
    piece: Piece
    ref_frames: int

    @property
    def num_frames(self) -> int:
        return self.piece.frames.stop - self.piece.frames.start


class Code2Wav:
    """Decodes pieces of like length together, at most `max_frames` frames at once, padding included."""

    def __init__(self, speech_tokenizer: SpeechTokenizer, max_frames: int) -> None:
        self._speech_tokenizer = speech_tokenizer
        self._max_frames = max_frames

    def decode(self, rows: Sequence[tuple[Tensor, Tensor | None]]) -> list[NDArray[np.float32] | None]:
        """Audio of rows of (codes [num_frames, 16], reference codes [ref_frames, 16] or None).

        Returns:
            float32 [num_frames * 1920] for each row, owned by the receiver; None where memory ran out.
        """
        audio: list[NDArray[np.float32] | None] = [
            np.empty(len(codes) * SAMPLES_PER_FRAME, dtype=np.float32) for codes, _ in rows
        ]
        jobs = [job for row, (codes, ref_codes) in enumerate(rows) for job in _cut(row, codes, ref_codes)]
        for group in self._groups(sorted(jobs, key=lambda job: -job.num_frames)):
            for job, samples in self._decode_group(group):
                target = audio[job.row]
                if samples is None or target is None:
                    audio[job.row] = None
                else:
                    stop = (job.piece.stop - job.ref_frames) * SAMPLES_PER_FRAME
                    start = max(0, stop - len(samples))  # what lies before 0 is the reference's own sound
                    target[start:stop] = samples[start - stop :]
        return audio

    def _groups(self, jobs: list[_Job]) -> Iterator[list[_Job]]:
        """Neighbours of jobs sorted longest first, as many together as the frame budget allows."""
        while jobs:
            size = max(1, self._max_frames // jobs[0].num_frames)
            yield jobs[:size]
            jobs = jobs[size:]

    def _decode_group(self, jobs: list[_Job]) -> Iterator[tuple[_Job, NDArray[np.float32] | None]]:
        """The samples of each job, in halves when they do not fit in memory together."""
        try:
            decoded = self._speech_tokenizer.decode_pieces([(job.codes, job.piece) for job in jobs])
            samples = [piece.cpu().numpy() for piece in decoded]
        except torch.OutOfMemoryError:
            samples = None
        if samples is not None:
            yield from zip(jobs, samples, strict=True)
        elif len(jobs) == 1:
            yield jobs[0], None
        else:
            yield from self._decode_group(jobs[: len(jobs) // 2])
            yield from self._decode_group(jobs[len(jobs) // 2 :])


def _cut(row: int, codes: Tensor, ref_codes: Tensor | None) -> list[_Job]:
    """The pieces of a row that hold new audio. Seams count from the reference's first frame."""
    from tts_batch.model.speech_tokenizer.pieces import cut_pieces

    if ref_codes is None:
        ref_codes = codes[:0]
    whole = torch.cat([ref_codes.cpu(), codes.cpu()])
    ref_frames = len(ref_codes)
    return [_Job(row, whole, piece, ref_frames) for piece in cut_pieces(len(whole)) if piece.stop > ref_frames]
