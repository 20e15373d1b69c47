"""Code2Wav chunk by chunk: a row's audio is sent while its codes are still being generated, for streaming playback.

The first chunk is one frame, so that sound starts early. Each after it is as long as all before it together, at most 25
frames: 1, 1, 2, 4, 8, 16, 25, 25, … Where frames are made twice as fast as they play, a player never runs out of sound.
Each is decoded behind the 72 frames before it, the reference's last ones at the start. A row's chunks go out in order,
one in the decoder at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tts_batch.engine.code2wav.code2wav import clip_result
from tts_batch.engine.code2wav.decode_pool import DecodePool, HostCopy
from tts_batch.engine.memory_errors import suppress_out_of_memory
from tts_batch.engine.request import NUM_CODEBOOKS, OnChunk, SpeechResult
from tts_batch.engine.runner import EngineRow, Runner

FIRST_CHUNK_FRAMES = 1
CHUNK_FRAMES = 25
CHUNK_CONTEXT_FRAMES = 72


@dataclass(slots=True, eq=False)
class _Stream:
    """A row that is being streamed."""

    row: EngineRow
    ref_tail: Tensor  # int16 [up to 72, 16]
    codes: Tensor  # int16 [frames so far, 16]
    chunks: list[NDArray[np.float32]] = field(default_factory=list)  # those sent
    num_sent: int = 0  # frames in them
    in_decoder: bool = False
    failed: bool = False  # memory ran out: no more chunks, and an error at its end
    last_chunk_sent: bool = False
    is_decoded: bool = False  # it has all its codes
    host_codes: HostCopy | None = None
    submitted_at_s: float = 0.0

    @property
    def chunk_stop(self) -> int:
        """The end of the next chunk, in frames, whether they are decoded yet or not."""
        stop = self.num_sent + min(CHUNK_FRAMES, max(FIRST_CHUNK_FRAMES, self.num_sent))
        return stop if not self.is_decoded else min(stop, len(self.codes))

    @property
    def is_ready(self) -> bool:
        """Whether the next chunk can be decoded."""
        is_idle = not self.in_decoder and not self.failed
        return is_idle and self.num_sent < self.chunk_stop <= len(self.codes)

    @property
    def is_complete(self) -> bool:
        """Whether all chunks were sent."""
        if not self.is_decoded or self.in_decoder or self.host_codes is None or not self.host_codes.is_done:
            return False
        return self.failed or self.num_sent == len(self.codes)


class ChunkedCode2Wav:
    """A Code2Wav that polls the runner for new frames and calls `on_chunk` for every chunk."""

    def __init__(self, pool: DecodePool, runner: Runner, on_chunk: OnChunk | None = None) -> None:
        self._pool = pool
        self._runner = runner
        self._on_chunk = on_chunk
        self._streams: dict[str, _Stream] = {}

    @property
    def busy(self) -> bool:
        return any(stream.is_decoded for stream in self._streams.values())

    def submit(self, row: EngineRow) -> None:
        stream = self._stream_of(row)
        stream.is_decoded = True
        stream.codes = row.codes.to(torch.int16)
        stream.host_codes = HostCopy(stream.codes)
        stream.submitted_at_s = time.monotonic()

    def poll(self, *, drain: bool) -> list[SpeechResult]:
        self._poll_runner()
        for stream in self._streams.values():
            if stream.is_ready:
                self._in_memory(stream, partial(self._decode_chunk, stream, stream.num_sent, stream.chunk_stop))
        self._pool.advance(drain=True)
        complete = [stream for stream in self._streams.values() if stream.is_complete]
        return [self._finish(stream) for stream in complete]

    def progress(self) -> list[tuple[str, int]]:
        return [(request_id, stream.num_sent) for request_id, stream in self._streams.items() if stream.is_decoded]

    def drop(self, request_id: str) -> bool:
        """True also for a row that the runner still decodes, if it has a stream."""
        self._pool.drop(request_id)
        return self._streams.pop(request_id, None) is not None

    def clear(self) -> None:
        self._pool.clear()
        self._streams.clear()

    def _poll_runner(self) -> None:
        for row, num_frames in self._runner.progress():
            if num_frames > 0:
                stream = self._stream_of(row)
                if num_frames >= stream.chunk_stop > len(stream.codes) and not stream.failed:
                    self._in_memory(stream, partial(self._copy_codes, stream, num_frames))

    def _in_memory(self, stream: _Stream, work: Callable[[], None]) -> None:
        """Call `work`; when memory runs out, empty torch's cache, retry once, then fail the stream."""
        for _ in range(2):
            with suppress_out_of_memory():
                work()
                return
            torch.cuda.empty_cache()
        stream.failed = True

    def _copy_codes(self, stream: _Stream, num_frames: int) -> None:
        stream.codes = self._runner.codes_so_far(stream.row, num_frames).to(torch.int16)

    def _stream_of(self, row: EngineRow) -> _Stream:
        request_id = row.request_id
        if request_id not in self._streams:
            nothing = torch.zeros(0, NUM_CODEBOOKS, dtype=torch.int16)
            tail = nothing if row.ref_codes is None else row.ref_codes[-CHUNK_CONTEXT_FRAMES:].to(torch.int16)
            self._streams[request_id] = _Stream(row, tail, nothing)
        return self._streams[request_id]

    def _decode_chunk(self, stream: _Stream, start: int, stop: int) -> None:
        request_id = stream.row.request_id
        frames = torch.cat([stream.ref_tail.to(stream.codes), stream.codes[:stop]])[
            -(CHUNK_CONTEXT_FRAMES + stop - start) :
        ]

        def deliver(audio: NDArray[np.float32] | None) -> None:
            stream.in_decoder = False
            if audio is None:
                stream.failed = True
            elif self._streams.get(request_id) is stream:
                stream.num_sent = stop
                self._send(stream, audio.copy(), is_last=stream.is_decoded and stop == len(stream.codes))

        self._pool.add(request_id, frames, stop - start, deliver)
        stream.in_decoder = True

    def _send(self, stream: _Stream, audio: NDArray[np.float32], *, is_last: bool) -> None:
        stream.chunks.append(audio)
        stream.last_chunk_sent = is_last
        if self._on_chunk is not None:
            self._on_chunk(stream.row.request_id, len(stream.chunks) - 1, audio.copy(), is_last)

    def _finish(self, stream: _Stream) -> SpeechResult:
        if not stream.last_chunk_sent and not stream.failed:
            # All frames were sent before the row was known to have ended.
            self._send(stream, np.zeros(0, np.float32), is_last=True)
        del self._streams[stream.row.request_id]
        audio = None if stream.failed else np.concatenate(stream.chunks)
        return clip_result(stream.row, stream.host_codes.numpy().copy(), audio, stream.submitted_at_s)
