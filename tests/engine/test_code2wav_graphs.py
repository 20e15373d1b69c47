"""Code2Wav's graphs, here the functions that they would replay: the same audio, sizes that pay, failures that show."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.asking import ask
from tests.engine.random_codec import CONFIG, random_decoder
from tests.engine.scripted import prepared_row
from tts_batch.engine.code2wav import Code2Wav
from tts_batch.engine.code2wav_fast import CONV_CONTEXT, FastCodecDecoder
from tts_batch.engine.code2wav_graphs import FRAMES, LAUNCH_FRAMES, MAX_FRAMES, PIECES, Code2WavGraphs
from tts_batch.engine.cuda_graphs import CudaGraphs
from tts_batch.engine.decode_pool import DecodePool, PoolLimits
from tts_batch.engine.meter import Meter
from tts_batch.engine.runner import DecodedRow

LONGEST = 325


@pytest.fixture(scope="module")
def fast() -> FastCodecDecoder:
    return FastCodecDecoder(random_decoder(CONFIG), torch.float32)


def random_codes(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, CONFIG.codebook_size, shape, generator=torch.Generator().manual_seed(seed))


def graphs_of(decode: Callable[..., torch.Tensor], **settings: int) -> Code2WavGraphs:
    return Code2WavGraphs(decode, CudaGraphs(False), "cpu", **{"longest": LONGEST, "most_frames": LONGEST, **settings})


class Scripted(CudaGraphs):
    """Captures nothing above some number of frames: there is no memory for it."""

    def __init__(self, max_frames: int) -> None:
        super().__init__(False, "Code2Wav")
        self.enabled, self.max_frames = True, max_frames

    def capture(self, key: Hashable, run: Callable[[], object]) -> None:
        pieces, frames = key  # type: ignore[misc]
        if pieces * frames > self.max_frames:
            raise torch.OutOfMemoryError("scripted")
        self._graphs[key] = type("Replay", (), {"replay": staticmethod(run)})()

    def sizes(self) -> set[Hashable]:
        return set(self._graphs)


@torch.inference_mode()
def test_static_tensors_change_no_audio_whatever_was_in_them(fast: FastCodecDecoder) -> None:
    graphs = graphs_of(fast, longest=40, most_frames=24)
    for pieces, length, num_frames, seed in [(4, 40, 17, 1), (2, 21, 9, 2), (4, 30, 24, 3), (1, 5, 5, 4)]:
        codes = random_codes(pieces, 16, length, seed=seed)
        first = torch.arange(pieces) % (length - num_frames + 1)
        expected = fast(codes, first, num_frames)
        audio = graphs.decode(codes, first, num_frames)
        torch.testing.assert_close(audio[:, : num_frames * 1_920], expected, rtol=0, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("context", [None, CONV_CONTEXT])
def test_rows_of_any_lengths_are_what_they_are_without(fast: FastCodecDecoder, context: int | None) -> None:
    rows = [
        DecodedRow(
            prepared_row(ask(f"{i}"), random_codes(ref_frames, 16, seed=9) if ref_frames else None),
            random_codes(frames, 16, seed=i), "stop", True, {},
        )
        for i, (frames, ref_frames) in enumerate([(5, 0), (1, 20), (7, 30), (3, 0), (290, 40)])
    ]  # fmt: skip
    audio: list[dict[str, np.ndarray]] = []
    for graphs in (None, graphs_of(fast)):
        code2wav = Code2Wav(DecodePool(fast, "cpu", PoolLimits(1_000), context, graphs=graphs))
        for row in rows:
            code2wav.submit(row)
        clips = {voiced.row.prepared.request.request_id: voiced.audio for voiced in code2wav.poll(drain=True)}
        audio.append(clips)
    assert len(audio[0]) == len(audio[1]) == len(rows)
    for name, clip in audio[0].items():
        np.testing.assert_allclose(clip, audio[1][name], rtol=0, atol=1e-5)


def test_batches_are_of_like_lengths(fast: FastCodecDecoder) -> None:
    """Where launching costs little, one long piece does not make sixteen short ones long."""
    decoded = {}
    for name, graphs in {"without": None, "with": graphs_of(fast, most_frames=128)}.items():
        meter = Meter()
        pool = DecodePool(fast, "cpu", PoolLimits(5_200), graphs=graphs, meter=meter)
        for i, frames in enumerate([100, *[12] * 16]):
            pool.add(f"{i}", random_codes(frames, 16), frames, lambda audio: None)
        pool.advance(drain=True)
        decoded[name] = meter.counts["decoded_frames"]
        assert meter.counts["code2wav_frames"] == 100 + 16 * 12
    assert decoded == {"without": 17 * 100, "with": 1 * 112 + 16 * 16}


@given(st.lists(st.integers(1, LONGEST), min_size=1, max_size=90))
def test_a_batch_costs_no_more_for_each_frame_than_any_other_would(wanted: list[int]) -> None:
    frames = sorted(wanted, reverse=True)
    size = graphs_of(lambda *_: None).batch_size(frames)  # type: ignore[arg-type, return-value]
    bucket = next(frame for frame in FRAMES if frame >= frames[0])

    def cost(n: int) -> float:
        return (LAUNCH_FRAMES + n * bucket) / sum(frames[:n])

    assert size in PIECES
    assert size <= len(frames)
    assert size == 1 or size * bucket <= MAX_FRAMES
    allowed = [n for n in PIECES if n <= len(frames) and (n == 1 or n * bucket <= MAX_FRAMES)]
    assert cost(size) == min(map(cost, allowed))


@pytest.mark.parametrize(
    ("settings", "frames", "size"),
    [
        ({}, [64] * 16, 16),
        ({}, [64] * 15, 8),
        ({}, [200, 16, 16, 16], 1),
        ({}, [325] * 9, 4),
        ({"max_pieces": 2}, [64] * 16, 2),
        ({"max_frames": 100}, [325] * 9, 1),
    ],
)
def test_sizes(settings: dict[str, int], frames: Sequence[int], size: int) -> None:
    assert graphs_of(lambda *_: None, **settings).batch_size(frames) == size  # type: ignore[arg-type, return-value]


def test_there_are_graphs_for_what_can_come_only() -> None:
    graphs = graphs_of(lambda *_: None, most_frames=37, max_pieces=4)  # type: ignore[arg-type, return-value]
    assert graphs.buckets == [(n, f) for n, f in graphs.buckets if n <= 4 and f <= 40]
    assert len(graphs.buckets) == 3 * 4
    assert graphs.buckets[0] == (4, 40)


@torch.inference_mode()
def test_what_cannot_be_captured_is_said_and_decoded_otherwise(
    fast: FastCodecDecoder, caplog: pytest.LogCaptureFixture
) -> None:
    scripted = Scripted(max_frames=32)
    graphs = Code2WavGraphs(fast, scripted, "cpu", longest=40, most_frames=40, max_pieces=4)
    with caplog.at_level(logging.WARNING):
        graphs.capture()
    failed = {bucket for bucket in graphs.buckets if bucket[0] * bucket[1] > 32}
    assert scripted.sizes() == set(graphs.buckets) - failed
    assert scripted.counts == {f"failed[{bucket}]": 1 for bucket in failed}
    assert "Code2Wav: no CUDA graph for (4, 40): OutOfMemoryError: scripted" in caplog.messages

    assert graphs.batch_size([16] * 4) == 2, "what was captured is used"
    assert graphs.batch_size([40] * 4) == 1
    codes, first = random_codes(2, 16, 40), torch.zeros(2, dtype=torch.int64)
    for num_frames in (12, 35):
        audio = graphs.decode(codes, first, num_frames)[:, : num_frames * 1_920]
        torch.testing.assert_close(audio, fast(codes, first, num_frames), rtol=0, atol=1e-5)
    assert scripted.counts["hit"] == 1
    assert scripted.counts["miss[(2, 40)]"] == 1
