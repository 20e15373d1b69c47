"""Code2Wav: finished codes to audio. Pieces are pooled, decoded in packed batches, trimmed to the sample, delivered.

Sequences are cut at the official seams, which count from the reference's first frame. On CUDA the decoder runs on a
stream of its own beside the talker, and audio comes to the host by a copy that nobody waits for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tts_batch.engine.request import NUM_CODEBOOKS, SAMPLES_PER_FRAME
from tts_batch.engine.runner import DecodedRow
from tts_batch.model.speech_tokenizer.pieces import Piece, cut_pieces

Decode = Callable[..., Tensor]
"""Padded codes int64 [batch, 16, frames] -> audio [batch, frames * 1920]. Causal: padding on the right is harmless.

Where `conv_context` is given, it also takes the first frame wanted of each row, int64 [batch], and how many from there.
"""

MAX_BATCHES_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True, eq=False)
class Voiced:
    """A row that left Code2Wav, with arrays of the receiver's own."""

    row: DecodedRow
    codes: NDArray[np.int16]  # [num_frames, 16]
    audio: NDArray[np.float32] | None  # [num_frames * 1920]; None: memory ran out
    code2wav_s: float  # from its last code to its last sample


@dataclass(slots=True, eq=False)
class _Row:
    """A row on its way: the audio it has so far, and how many pieces are missing."""

    decoded: DecodedRow
    codes: Tensor  # int16 [num_frames, 16] on the host, complete when a batch launched later is
    audio: NDArray[np.float32] | None
    pieces_left: int
    submitted_at_s: float


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """One piece of a row: its codes, and where its audio goes."""

    row: _Row
    codes: Tensor  # [context + new frames, 16]
    skip: int  # frames at its beginning that the convolutions need not see
    stop: int  # sample of the row's audio at which the piece ends
    length: int  # samples of the row's audio in it: the last ones

    @property
    def num_frames(self) -> int:
        return len(self.codes) - self.skip


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Jobs decoded together. Tensors the device may still read are kept here until `copied`."""

    jobs: Sequence[_Job]
    audio: Tensor  # on the host
    copied: torch.cuda.Event | None
    kept: Sequence[Tensor] = ()

    @property
    def is_done(self) -> bool:
        return self.copied is None or self.copied.query()


class Code2Wav:
    """Used from one thread. `submit` rows, then `poll` until they come back; nothing in here waits for the device."""

    def __init__(
        self,
        decode: Decode,
        device: torch.device | str,
        max_frames: int,
        max_wait_s: float = 0.25,
        conv_context: int | None = None,
    ) -> None:
        """At most `max_frames` frames are decoded at once, padding included; a piece waits `max_wait_s` for others.

        With `conv_context` the decoder's convolutions run over so many frames before the wanted ones only.
        """
        self._decode = decode
        self._conv_context = conv_context
        self._device = torch.device(device)
        self._max_frames = max_frames
        self._max_wait_s = max_wait_s
        self._rows: dict[str, _Row] = {}
        self._pool: list[_Job] = []
        self._batches: list[_Batch] = []
        self._ended: list[_Row] = []
        self._stream = torch.cuda.Stream() if self._device.type == "cuda" else None

    @property
    def busy(self) -> bool:
        """Whether any row is still in here."""
        return bool(self._rows)

    def warm_up(self, frames: int = 40) -> None:
        """Decode something once, so that every kernel is compiled before work comes."""
        codes = torch.zeros(1, NUM_CODEBOOKS, frames, dtype=torch.int64, device=self._device)
        with torch.inference_mode():
            if self._conv_context is None:
                self._decode(codes)
            else:
                self._decode(codes, torch.zeros(1, dtype=torch.int64, device=self._device), frames)

    def submit(self, decoded: DecodedRow) -> None:
        """Take a row with all its codes."""
        num_frames, ref_codes = len(decoded.codes), decoded.prepared.ref_codes
        whole = decoded.codes if ref_codes is None else torch.cat([ref_codes.to(decoded.codes), decoded.codes])
        ref_frames = len(whole) - num_frames
        pieces = [piece for piece in cut_pieces(len(whole)) if piece.stop > ref_frames]
        audio = np.empty(num_frames * SAMPLES_PER_FRAME, dtype=np.float32)
        row = _Row(decoded, _to_host(decoded.codes.to(torch.int16)), audio, len(pieces), time.monotonic())
        self._rows[decoded.prepared.request.request_id] = row
        self._pool += [self._job(row, whole, piece, ref_frames) for piece in pieces]
        if not pieces:
            self._ended.append(row)

    def poll(self, *, drain: bool) -> list[Voiced]:
        """Start what is worth starting (with `drain`: everything), and return the rows that are complete."""
        self._start_batches(drain)
        while self._batches and self._batches[0].is_done:
            self._scatter(self._batches.pop(0))
        now_s = time.monotonic()
        ended, self._ended = self._ended, []
        voiced = []
        for row in ended:
            if self._rows.pop(row.decoded.prepared.request.request_id, None) is row:
                voiced.append(Voiced(row.decoded, row.codes.numpy().copy(), row.audio, now_s - row.submitted_at_s))
        return voiced

    def drop(self, request_id: str) -> bool:
        """Forget a row, wherever it is; False if it is not here."""
        row = self._rows.pop(request_id, None)
        self._pool = [job for job in self._pool if job.row is not row]
        return row is not None

    def clear(self) -> None:
        """Forget every row."""
        self._rows.clear()
        self._pool.clear()
        self._batches.clear()
        self._ended.clear()

    def _start_batches(self, drain: bool) -> None:
        while self._pool and len(self._batches) < MAX_BATCHES_IN_FLIGHT:
            self._pool.sort(key=lambda job: -job.num_frames)
            size = max(1, self._max_frames // self._pool[0].num_frames)
            oldest_s = min(job.row.submitted_at_s for job in self._pool)
            if len(self._pool) < size and not drain and time.monotonic() - oldest_s < self._max_wait_s:
                return
            jobs, self._pool = self._pool[:size], self._pool[size:]
            self._start(jobs)

    def _start(self, jobs: Sequence[_Job]) -> None:
        """Queue a batch, in halves when it does not fit in memory; a piece that does not fit alone ends its row."""
        try:
            self._batches.append(self._launch(jobs))
        except torch.OutOfMemoryError:
            if len(jobs) == 1:
                self._finish_piece(jobs[0].row, failed=True)
                return
            torch.cuda.empty_cache()
            self._start(jobs[: len(jobs) // 2])
            self._start(jobs[len(jobs) // 2 :])

    def _launch(self, jobs: Sequence[_Job]) -> _Batch:
        rows = [job.codes for job in jobs]
        if self._stream is None:
            return _Batch(jobs, self._decode_jobs(jobs, _pad(rows)), copied=None)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            codes = _pad(rows)
            audio = self._decode_jobs(jobs, codes)
            host = _to_host(audio)
            copied = torch.cuda.Event()
            copied.record()
        return _Batch(jobs, host, copied, kept=(*rows, codes, audio))

    def _decode_jobs(self, jobs: Sequence[_Job], codes: Tensor) -> Tensor:
        """Audio [batch, samples], each row beginning after what its job skips."""
        if self._conv_context is None:
            return self._decode(codes).float()
        first = torch.tensor([job.skip for job in jobs])
        if codes.is_cuda:
            first = first.pin_memory().to(codes.device, non_blocking=True)
        return self._decode(codes, first, max(job.num_frames for job in jobs))

    def _job(self, row: _Row, whole: Tensor, piece: Piece, ref_frames: int) -> _Job:
        stop = (piece.stop - ref_frames) * SAMPLES_PER_FRAME
        # What lies before the row's first sample is the reference's own sound.
        length = min(stop, (piece.stop - piece.start) * SAMPLES_PER_FRAME)
        skip = 0
        if self._conv_context is not None:
            skip = max(0, piece.num_frames - length // SAMPLES_PER_FRAME - self._conv_context)
        return _Job(row, whole[piece.frames], skip, stop, length)

    def _scatter(self, batch: _Batch) -> None:
        for job, samples in zip(batch.jobs, batch.audio.numpy(), strict=True):
            if job.row.audio is not None:
                decoded = samples[: job.num_frames * SAMPLES_PER_FRAME]
                job.row.audio[job.stop - job.length : job.stop] = decoded[len(decoded) - job.length :]
            self._finish_piece(job.row)

    def _finish_piece(self, row: _Row, *, failed: bool = False) -> None:
        row.pieces_left -= 1
        if failed:
            row.audio = None
        if row.pieces_left == 0:
            self._ended.append(row)


def _to_host(x: Tensor) -> Tensor:
    """A copy on the host, queued on the current stream."""
    if not x.is_cuda:
        return x.clone()
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)


def _pad(rows: Sequence[Tensor]) -> Tensor:
    """[frames, 16] each -> int64 [batch, 16, frames]."""
    return pad_sequence([row.long() for row in rows], batch_first=True).transpose(1, 2)
