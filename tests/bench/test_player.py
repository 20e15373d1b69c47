"""Playback in real time: a player starts with the first chunk and pauses while the next is late."""

from __future__ import annotations

import numpy as np
import pytest

from tts_batch.bench import player
from tts_batch.bench.player import Chunk, ChunkRecorder, PlaybackStats, underruns_s


@pytest.mark.parametrize(
    ("chunks", "gaps_s"),
    [
        ([(5.0, 1.0)], []),
        ([(5.0, 1.0), (6.0, 1.0), (6.5, 1.0)], []),
        ([(5.0, 1.0), (6.5, 1.0), (7.5, 1.0)], [0.5]),
        ([(5.0, 1.0), (7.0, 1.0), (9.0, 1.0)], [1.0, 1.0]),
        ([(5.0, 0.08), (5.01, 9.0), (14.0, 2.0)], []),
        ([(5.0, 2.0), (5.0, 2.0), (9.25, 1.0)], [0.25]),
    ],
)
def test_underruns(chunks: list[tuple[float, float]], gaps_s: list[float]) -> None:
    assert underruns_s([Chunk(*chunk) for chunk in chunks]) == pytest.approx(gaps_s)


def test_each_request_has_its_own_player(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = iter([10.0, 10.5, 11.5, 13.0])
    monkeypatch.setattr(player.time, "monotonic", lambda: next(now_s))
    recorder = ChunkRecorder()
    second = np.zeros(24_000, np.float32)
    recorder("a", 0, second, False)
    recorder("b", 0, second, False)
    recorder("a", 1, second, True)  # half a second late
    recorder("b", 1, second, False)  # one and a half
    recorder("b", 2, np.zeros(0, np.float32), True)
    stats = recorder.stats({"a": 9.0, "b": 10.0, "no chunks": 9.0})
    assert stats == PlaybackStats(pytest.approx(0.75), pytest.approx(0.995), 2, 2, pytest.approx(2.0))
    recorder.clear()
    assert recorder.stats({"a": 9.0}) is None
