"""Playback of chunked audio in real time: latency of the first chunk, and underruns."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tts_batch.engine.request import SAMPLE_RATE_HZ


@dataclass(frozen=True, slots=True)
class Chunk:
    """The arrival of a chunk of audio."""

    at_s: float  # time.monotonic()
    audio_s: float


@dataclass(frozen=True, slots=True)
class PlaybackStats:
    """Playback of all rows, each by a player that starts with its first chunk and pauses when the next is late."""

    first_audio_p50_s: float
    first_audio_p99_s: float
    underruns: int
    rows_with_underruns: int
    underrun_s: float  # total over rows


class ChunkRecorder:
    """An `on_chunk` callback that records when the chunks of each request arrived, until `clear`."""

    def __init__(self) -> None:
        self._chunks: defaultdict[str, list[Chunk]] = defaultdict(list)

    def __call__(self, request_id: str, index: int, audio: NDArray[np.float32], is_last: bool) -> None:
        if audio.size:  # the last chunk may be empty
            self._chunks[request_id].append(Chunk(time.monotonic(), audio.size / SAMPLE_RATE_HZ))

    def clear(self) -> None:
        """Forget all chunks: the next pass uses the same request ids."""
        self._chunks.clear()

    def stats(self, added_at_s: Mapping[str, float]) -> PlaybackStats | None:
        """The playback of requests, given when each was added; None when no chunk arrived."""
        rows = [(added_s, self._chunks[name]) for name, added_s in added_at_s.items() if self._chunks.get(name)]
        if not rows:
            return None
        first_s = [chunks[0].at_s - added_s for added_s, chunks in rows]
        gaps_s = [underruns_s(chunks) for _, chunks in rows]
        return PlaybackStats(
            first_audio_p50_s=float(np.percentile(first_s, 50)),
            first_audio_p99_s=float(np.percentile(first_s, 99)),
            underruns=sum(map(len, gaps_s)),
            rows_with_underruns=sum(map(bool, gaps_s)),
            underrun_s=sum(map(sum, gaps_s)),
        )


def underruns_s(chunks: Sequence[Chunk]) -> list[float]:
    """The length in seconds of each underrun of one player, from the chunks of its row (at least one)."""
    gaps_s = []
    plays_until_s = chunks[0].at_s
    for chunk in chunks:
        if chunk.at_s > plays_until_s:
            gaps_s.append(chunk.at_s - plays_until_s)
            plays_until_s = chunk.at_s
        plays_until_s += chunk.audio_s
    return gaps_s


def describe(playback: Mapping[str, Any] | None) -> str:
    """A line of the table, from a PlaybackStats as a dict."""
    if playback is None:
        return "first audio and underrun: n/a (whole clips; measured with --chunked only)"
    return (
        f"first audio p50 {playback['first_audio_p50_s']:.3f} s, p99 {playback['first_audio_p99_s']:.3f} s; "
        f"{playback['underruns']} underruns in {playback['rows_with_underruns']} rows, "
        f"{playback['underrun_s']:.2f} s in total (real-time players that start with the first chunk)"
    )
