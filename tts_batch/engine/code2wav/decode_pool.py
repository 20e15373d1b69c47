"""The decoder's queue: pieces of code sequences, decoded in packed batches.

On CUDA the decoder runs on a second device, or on a stream of its own beside the talker unless configured otherwise.
Codes come to it from any device, and audio to the host, by asynchronous copies.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tts_batch.engine.code2wav.decoder import Decode
from tts_batch.engine.code2wav.graphs import Code2WavGraphs, cheapest_size
from tts_batch.engine.memory_errors import suppress_out_of_memory
from tts_batch.engine.meter import Meter
from tts_batch.engine.request import NUM_CODEBOOKS, SAMPLES_PER_FRAME
from tts_batch.engine.staging import stage

logger = logging.getLogger(__name__)

Deliver = Callable[[NDArray[np.float32] | None], None]
"""Gets the audio of a piece's wanted frames, a view to copy from; None: memory ran out."""

MIN_BATCHES_IN_FLIGHT = 2  # more while together they have fewer frames than one batch may have
# What the launches of a batch cost, in frames of 14 us: 2 ms on an idle host, 15 ms on one whose
# threads take turns. On an H200 with 1,024 rows 150 left the device idle, and 600 decoded too much padding.
LAUNCH_COST_FRAMES = 350


class HostCopy:
    """A tensor's copy on the host, queued on the current stream of the tensor's device."""

    def __init__(self, x: Tensor) -> None:
        self._copied = None
        if x.is_cuda:
            self._host = torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(x.device))
        else:
            self._host = x.to("cpu", copy=True)

    @property
    def is_done(self) -> bool:
        return self._copied is None or self._copied.query()

    def numpy(self) -> NDArray:
        """A view of the copy, once it is done."""
        return self._host.numpy()


@dataclass(frozen=True, slots=True, eq=False)
class DecodeJob:
    """Consecutive frames of a row, decoded together."""

    row_id: str
    codes: Tensor  # [context + wanted, 16]
    wanted: int  # frames whose audio is delivered: the last ones
    skip: int  # frames at its beginning that the convolutions need not see
    deliver: Deliver
    added_at_s: float

    @property
    def num_frames(self) -> int:
        return len(self.codes) - self.skip

    def wanted_samples(self, audio: NDArray[np.float32]) -> NDArray[np.float32]:
        """The piece's own part of a batch's row, which begins after `skip` and is padded."""
        return audio[(self.num_frames - self.wanted) * SAMPLES_PER_FRAME : self.num_frames * SAMPLES_PER_FRAME]


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Pieces decoded together. Tensors the device may still read are kept here until the copy is done."""

    pieces: Sequence[DecodeJob]
    audio: HostCopy
    num_frames: int  # padding included
    kept: Sequence[Tensor] = ()


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Limits on a batch of pieces."""

    max_frames: int  # decoded at once, padding included
    max_pieces: int = 1_024  # decoded at once
    max_wait_s: float = 0.25  # how long a piece waits for others to fill a batch


class DecodePool:
    """Used from one thread. Nothing in here waits for the device."""

    def __init__(
        self,
        decode: Decode,
        device: torch.device | str,
        limits: PoolLimits,
        own_stream: bool = True,
        graphs: Code2WavGraphs | None = None,
        meter: Meter | None = None,
    ) -> None:
        """A pool on the decoder's device. What comes from another one needs a stream of the decoder's own.

        With `graphs`, which are of the same decoder, batches are of their sizes.
        """
        self._decode = decode
        self._device = torch.device(device)
        self._limits = limits  # lowered where a batch did not fit
        self.graphs = graphs
        self._meter = meter or Meter()
        self._pieces: list[DecodeJob] = []
        self._batches: list[_Batch] = []
        self._stream = torch.cuda.Stream(self._device) if own_stream and self._device.type == "cuda" else None

    @torch.inference_mode()
    def warm_up(self, source: torch.device, frames: int = 16) -> None:
        """Capture the graphs, and decode something from the device `source` once.

        That compiles every kernel and enables peer access between two devices.
        """
        if self.graphs is not None:
            with self._meter.on_host("capture Code2Wav"):
                self.graphs.capture()
        codes = torch.zeros(frames, NUM_CODEBOOKS, dtype=torch.int16, device=source)
        self._start([self._piece("", codes, frames, lambda audio: None)])
        if self._stream is not None:
            self._stream.synchronize()
        self.clear()

    def add(self, row_id: str, codes: Tensor, wanted: int, deliver: Deliver) -> None:
        """Queue codes [context + wanted, 16], all from one device. `advance` calls `deliver` unless dropped before."""
        self._pieces.append(self._piece(row_id, codes, wanted, deliver))

    def advance(self, *, drain: bool) -> None:
        """Start the batches that are due (with `drain`: all), and deliver the finished ones, in order."""
        self._start_batches(drain)
        while self._batches and self._batches[0].audio.is_done:
            batch = self._batches.pop(0)
            for piece, audio in zip(batch.pieces, batch.audio.numpy(), strict=True):
                piece.deliver(piece.wanted_samples(audio))

    def drop(self, row_id: str) -> None:
        """Forget a row's pieces; those that are being decoded are still delivered."""
        self._pieces = [piece for piece in self._pieces if piece.row_id != row_id]

    def clear(self) -> None:
        """Forget all pieces, those that are being decoded too."""
        if self._stream is not None:  # their codes may be overwritten from here on, though not before they were read
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._pieces.clear()
        self._batches.clear()

    def _start_batches(self, drain: bool) -> None:
        limits = self._limits
        while self._pieces and self._may_start:
            self._pieces.sort(key=lambda piece: -piece.num_frames)
            size = min(limits.max_pieces, max(1, limits.max_frames // self._pieces[0].num_frames))
            oldest_s = min(piece.added_at_s for piece in self._pieces)
            if len(self._pieces) < size and not drain and time.monotonic() - oldest_s < limits.max_wait_s:
                return
            frames = [piece.num_frames for piece in self._pieces[:size]]
            if self.graphs is not None:
                size = self.graphs.batch_size(frames)
            else:
                size = cheapest_size(range(1, len(frames) + 1), frames, frames[0], LAUNCH_COST_FRAMES)
            pieces, self._pieces = self._pieces[:size], self._pieces[size:]
            self._start(pieces)

    @property
    def _may_start(self) -> bool:
        if len(self._batches) < MIN_BATCHES_IN_FLIGHT:
            return True
        return sum(batch.num_frames for batch in self._batches) < self._limits.max_frames

    def _start(self, pieces: Sequence[DecodeJob]) -> None:
        """Queue a batch, in halves when it does not fit in memory; later ones are no larger than what is tried then."""
        with suppress_out_of_memory():
            self._batches.append(self._launch(pieces))
            return
        # Here the error is gone, and with it the tensors that it kept.
        torch.cuda.empty_cache()
        if len(pieces) == 1:
            pieces[0].deliver(None)
            return
        self._lower_limit(len(pieces) * pieces[0].num_frames)
        self._start(pieces[: len(pieces) // 2])
        self._start(pieces[len(pieces) // 2 :])

    def _lower_limit(self, num_frames: int) -> None:
        if num_frames // 2 < self._limits.max_frames:
            self._limits = replace(self._limits, max_frames=max(1, num_frames // 2))
            logger.warning(
                "out of memory decoding %d frames at once; going on with %d", num_frames, self._limits.max_frames
            )

    def _launch(self, pieces: Sequence[DecodeJob]) -> _Batch:
        # Between two devices the copy waits for the current stream of both: the talker's, and here one that is idle.
        # On the decoder's stream it would have the talker wait for the batches before this one.
        packed = torch.cat([piece.codes for piece in pieces]).to(self._device, non_blocking=True)
        if self._stream is None:
            return self._decode_batch(pieces, packed)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            return self._decode_batch(pieces, packed)

    def _decode_batch(self, pieces: Sequence[DecodeJob], packed: Tensor) -> _Batch:
        """Decode the codes of all pieces [frames of all, 16] on the current stream."""
        with self._meter.on_device("code2wav", self._device):
            skips = torch.tensor([piece.skip for piece in pieces])
            lens = torch.tensor([len(piece.codes) for piece in pieces])
            at, first, ends = stage(self._device, _padded_places(lens.numpy()), skips, lens)
            codes = packed[at].long().transpose(1, 2)
            audio = self._decode_pieces(pieces, codes, first, ends)
        num_frames = audio.numel() // SAMPLES_PER_FRAME
        self._meter.counts["code2wav_frames"] += sum(piece.wanted for piece in pieces)
        self._meter.counts["decoded_frames"] += num_frames
        return _Batch(pieces, HostCopy(audio), num_frames, kept=(packed, codes, audio))

    def _decode_pieces(self, pieces: Sequence[DecodeJob], codes: Tensor, first: Tensor, ends: Tensor) -> Tensor:
        """Audio [batch, samples] of frames [first, ends) of each row, and then padding: first is what a piece skips."""
        num_frames = max(piece.num_frames for piece in pieces)
        if self.graphs is not None:
            return self.graphs.decode(codes, first, num_frames, ends)
        self._meter.graphs["code2wav"]["eager"] += 1
        return self._decode(codes, first, num_frames, ends)

    def _piece(self, row_id: str, codes: Tensor, wanted: int, deliver: Deliver) -> DecodeJob:
        context = self._decode.conv_context
        skip = 0 if context is None else max(0, len(codes) - wanted - context)
        return DecodeJob(row_id, codes, wanted, skip, deliver, time.monotonic())


def _padded_places(lens: NDArray[np.int64]) -> Tensor:
    """Where each frame of a padded batch stands among the frames of pieces of `lens`, one piece after another.

    int64 [batch, frames]; padding is a piece's last frame, again.
    """
    starts = np.cumsum(lens) - lens
    return torch.from_numpy(starts[:, None] + np.minimum(np.arange(lens.max()), lens[:, None] - 1))
