"""Code2Wav chunk by chunk: a row's audio goes out while its codes are still being made, for those who listen along.

The first chunk is one frame, so that sound starts early. Each after it is as long as all before it together, at most 25
frames: 1, 1, 2, 4, 8, 16, 25, 25, … Where frames are made twice as fast as they play, a player never runs out of sound.
Each is decoded behind the 72 frames before it, the reference's last ones at the start. A row's chunks go out in order,
one in the decoder at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tts_batch.engine.code2wav.decode_pool import DecodePool, HostCopy
from tts_batch.engine.code2wav.utterance import Voiced
from tts_batch.engine.request import NUM_CODEBOOKS, OnChunk
from tts_batch.engine.runner import DecodedRow, PreparedRow, Runner

FIRST_CHUNK_FRAMES = 1
CHUNK_FRAMES = 25
CHUNK_CONTEXT_FRAMES = 72


@dataclass(slots=True, eq=False)
class _Row:
    """A row that is being spoken."""

    prepared: PreparedRow
    ref_tail: Tensor  # int16 [up to 72, 16]
    codes: Tensor  # int16 [frames so far, 16]
    chunks: list[NDArray[np.float32]] = field(default_factory=list)  # what has gone out
    num_spoken: int = 0  # frames in them
    in_decoder: bool = False
    is_silenced: bool = False  # memory ran out: it goes on without a sound, and fails at its end
    has_said_last: bool = False
    decoded: DecodedRow | None = None  # once it has all its codes
    host_codes: HostCopy | None = None
    submitted_at_s: float = 0.0

    @property
    def chunk_stop(self) -> int:
        """Where the next chunk ends, whether its frames are there or not."""
        stop = self.num_spoken + min(CHUNK_FRAMES, max(FIRST_CHUNK_FRAMES, self.num_spoken))
        return stop if self.decoded is None else min(stop, len(self.codes))

    @property
    def is_ready(self) -> bool:
        """Whether the next chunk can be decoded."""
        is_idle = not self.in_decoder and not self.is_silenced
        return is_idle and self.num_spoken < self.chunk_stop <= len(self.codes)

    @property
    def is_complete(self) -> bool:
        """Whether all that there is to say is out."""
        if self.decoded is None or self.in_decoder or self.host_codes is None or not self.host_codes.is_done:
            return False
        return self.is_silenced or self.num_spoken == len(self.codes)


class ChunkedCode2Wav:
    """The Vocoder that looks into the runner for frames, and calls `on_chunk` for every chunk."""

    def __init__(self, pool: DecodePool, runner: Runner, on_chunk: OnChunk | None = None) -> None:
        self._pool = pool
        self._runner = runner
        self._on_chunk = on_chunk
        self._rows: dict[str, _Row] = {}

    @property
    def busy(self) -> bool:
        return any(row.decoded is not None for row in self._rows.values())

    def submit(self, decoded: DecodedRow) -> None:
        row = self._row_of(decoded.prepared)
        row.decoded = decoded
        row.codes = decoded.codes.to(torch.int16)
        row.host_codes = HostCopy(row.codes)
        row.submitted_at_s = time.monotonic()

    def poll(self, *, drain: bool) -> list[Voiced]:
        self._look_into_runner()
        for row in self._rows.values():
            if row.is_ready:
                self._in_memory(row, partial(self._decode_chunk, row, row.num_spoken, row.chunk_stop))
        self._pool.advance(drain=True)
        complete = [row for row in self._rows.values() if row.is_complete]
        return [self._finish(row, row.decoded) for row in complete]

    def progress(self) -> list[tuple[str, int]]:
        return [(request_id, row.num_spoken) for request_id, row in self._rows.items() if row.decoded is not None]

    def drop(self, request_id: str) -> bool:
        """True also for a row that is still in the runner, if something of it is here."""
        self._pool.drop(request_id)
        return self._rows.pop(request_id, None) is not None

    def clear(self) -> None:
        self._pool.clear()
        self._rows.clear()

    def _look_into_runner(self) -> None:
        for prepared, num_frames in self._runner.progress():
            if num_frames > 0:
                row = self._row_of(prepared)
                if num_frames >= row.chunk_stop > len(row.codes) and not row.is_silenced:
                    self._in_memory(row, partial(self._copy_codes, row, num_frames))

    def _in_memory(self, row: _Row, work: Callable[[], None]) -> None:
        """Do what needs memory, a second time without what torch keeps for later; a row that has none is silenced."""
        for _ in range(2):
            with suppress(torch.OutOfMemoryError):
                work()
                return
            torch.cuda.empty_cache()
        row.is_silenced = True

    def _copy_codes(self, row: _Row, num_frames: int) -> None:
        row.codes = self._runner.codes_so_far(row.prepared, num_frames).to(torch.int16)

    def _row_of(self, prepared: PreparedRow) -> _Row:
        request_id = prepared.request.request_id
        if request_id not in self._rows:
            nothing = torch.zeros(0, NUM_CODEBOOKS, dtype=torch.int16)
            tail = nothing if prepared.ref_codes is None else prepared.ref_codes[-CHUNK_CONTEXT_FRAMES:].to(torch.int16)
            self._rows[request_id] = _Row(prepared, tail, nothing)
        return self._rows[request_id]

    def _decode_chunk(self, row: _Row, start: int, stop: int) -> None:
        request_id = row.prepared.request.request_id
        frames = torch.cat([row.ref_tail.to(row.codes), row.codes[:stop]])[-(CHUNK_CONTEXT_FRAMES + stop - start) :]

        def deliver(audio: NDArray[np.float32] | None) -> None:
            row.in_decoder = False
            if audio is None:
                row.is_silenced = True
            elif self._rows.get(request_id) is row:
                row.num_spoken = stop
                self._send(row, audio.copy(), is_last=row.decoded is not None and stop == len(row.codes))

        self._pool.add(request_id, frames, stop - start, deliver)
        row.in_decoder = True

    def _send(self, row: _Row, audio: NDArray[np.float32], *, is_last: bool) -> None:
        row.chunks.append(audio)
        row.has_said_last = is_last
        if self._on_chunk is not None:
            self._on_chunk(row.prepared.request.request_id, len(row.chunks) - 1, audio.copy(), is_last)

    def _finish(self, row: _Row, decoded: DecodedRow) -> Voiced:
        if not row.has_said_last and not row.is_silenced:
            # All frames were out before it was known that no more would come.
            self._send(row, np.zeros(0, np.float32), is_last=True)
        del self._rows[decoded.prepared.request.request_id]
        audio = None if row.is_silenced else np.concatenate(row.chunks)
        return Voiced(decoded, row.host_codes.numpy().copy(), audio, time.monotonic() - row.submitted_at_s)
