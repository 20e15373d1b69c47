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
from tests.engine.scripted import ScriptedRunner, prepared_row
from tts_batch.engine.code2wav.chunked import ChunkedCode2Wav
from tts_batch.engine.code2wav.decode_pool import DecodePool, PoolLimits
from tts_batch.engine.code2wav.fast_decoder import CONV_CONTEXT, FastCodecDecoder
from tts_batch.engine.code2wav.graphs import FRAMES, MAX_FRAMES, PIECES, REPLAY_COST_FRAMES, Code2WavGraphs
from tts_batch.engine.cuda_graphs import CudaGraphs
from tts_batch.engine.meter import Meter

LONGEST = 97


@pytest.fixture(scope="module")
def fast() -> FastCodecDecoder:
    return FastCodecDecoder(random_decoder(CONFIG), torch.float32)


def random_codes(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, CONFIG.codebook_size, shape, generator=torch.Generator().manual_seed(seed))


def graphs_of(decode: Callable[..., torch.Tensor], **settings: int) -> Code2WavGraphs:
    return Code2WavGraphs(decode, CudaGraphs(False), "cpu", **settings)


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
    graphs = graphs_of(fast, longest=24)
    for pieces, length, num_frames, seed in [(4, 97, 17, 1), (2, 21, 9, 2), (4, 30, 26, 3), (1, 5, 5, 4)]:
        codes = random_codes(pieces, 16, length, seed=seed)
        first = torch.arange(pieces) % (length - num_frames + 1)
        expected = fast(codes, first, num_frames)
        audio = graphs.decode(codes, first, num_frames, ends=torch.full((pieces,), length))
        torch.testing.assert_close(audio[:, : num_frames * 1_920], expected, rtol=0, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("context", [None, CONV_CONTEXT])
def test_chunks_of_any_rows_are_what_they_are_without(context: int | None) -> None:
    fast = FastCodecDecoder(random_decoder(CONFIG), torch.float32, context)
    rows = [
        prepared_row(ask(f"{i}"), random_codes(ref_frames, 16, seed=9) if ref_frames else None).end(
            random_codes(frames, 16, seed=i), "stop", {}
        )
        for i, (frames, ref_frames) in enumerate([(5, 0), (1, 20), (7, 30), (3, 0), (90, 40), (33, 200)])
    ]  # fmt: skip
    audio: list[dict[str, np.ndarray]] = []
    for graphs in (None, graphs_of(fast, longest=25 + (72 if context is None else context))):
        code2wav = ChunkedCode2Wav(DecodePool(fast, "cpu", PoolLimits(1_000), graphs=graphs), ScriptedRunner())
        for row in rows:
            code2wav.submit(row)
        clips = {}
        while code2wav.busy:
            clips |= {result.request_id: result.audio for result in code2wav.poll(drain=True)}
        audio.append(clips)
        if graphs is not None:
            assert graphs._graphs.counts.keys() == {"eager"}, "each on the static tensors"
    assert len(audio[0]) == len(audio[1]) == len(rows)
    for name, clip in audio[0].items():
        np.testing.assert_allclose(clip, audio[1][name], rtol=0, atol=1e-5)


def test_batches_are_of_like_lengths(fast: FastCodecDecoder) -> None:
    """One long piece does not make sixteen short ones long; a graph has its own lengths."""
    decoded = {}
    for name, graphs in {"without": None, "with": graphs_of(fast)}.items():
        meter = Meter()
        pool = DecodePool(fast, "cpu", PoolLimits(5_200), graphs=graphs, meter=meter)
        for i, frames in enumerate([90, *[8] * 16]):
            pool.add(f"{i}", random_codes(frames, 16), frames, lambda audio: None)
        pool.advance(drain=True)
        decoded[name] = meter.counts["decoded_frames"]
        assert meter.counts["code2wav_frames"] == 90 + 16 * 8
    assert decoded == {"without": 90 + 16 * 8, "with": 97 + 16 * 9}


@torch.inference_mode()
@pytest.mark.parametrize(("context", "decoded"), [(CONV_CONTEXT, 107 + 9), (None, 9 * (72 + 25))])
def test_chunks_are_not_padded_where_context_is_skipped(context: int | None, decoded: int) -> None:
    """Nine chunks: of 1, 1, 2, 4, 8, 16 and three times 25 frames, each behind a frame, or behind all 72."""
    meter = Meter()
    fast = FastCodecDecoder(random_decoder(CONFIG), torch.float32, context)
    pool = DecodePool(fast, "cpu", PoolLimits(1_000), graphs=graphs_of(fast), meter=meter)
    code2wav = ChunkedCode2Wav(pool, ScriptedRunner())
    code2wav.submit(prepared_row(ask("a"), random_codes(80, 16, seed=1)).end(random_codes(107, 16), "stop", {}))
    while code2wav.busy:
        code2wav.poll(drain=True)
    assert meter.counts == {"code2wav_frames": 107, "decoded_frames": decoded}


@given(st.lists(st.integers(1, LONGEST), min_size=1, max_size=90))
def test_a_batch_costs_no_more_for_each_frame_than_any_other_would(wanted: list[int]) -> None:
    frames = sorted(wanted, reverse=True)
    size = graphs_of(lambda *_: None).batch_size(frames)  # type: ignore[arg-type, return-value]
    bucket = next(frame for frame in FRAMES if frame >= frames[0])

    def cost(n: int) -> float:
        return (REPLAY_COST_FRAMES + n * bucket) / sum(frames[:n])

    assert size in PIECES
    assert size <= len(frames)
    assert size == 1 or size * bucket <= MAX_FRAMES
    allowed = [n for n in PIECES if n <= len(frames) and (n == 1 or n * bucket <= MAX_FRAMES)]
    assert cost(size) == min(map(cost, allowed))


@pytest.mark.parametrize(
    ("settings", "frames", "size"),
    [
        ({}, [26] * 16, 16),
        ({}, [26] * 15, 8),
        ({}, [26] * 64, 32),  # 64 would be 1,664 frames
        ({}, [97] * 20, 8),  # 16 would be 1,552
        ({}, [26, 2, 2, 2], 1),  # 86 for 26 frames; two would be 112 for 28, four 164 for 32
        ({}, [5, 2, 2, 2], 4),  # 80 for 11 frames; one would be 65 for 5
        ({"max_pieces": 2}, [26] * 16, 2),
        ({"max_frames": 90}, [97] * 9, 1),
        ({"longest": 26}, [27, 26, 26], 1),
    ],
)
def test_sizes(settings: dict[str, int], frames: Sequence[int], size: int) -> None:
    assert graphs_of(lambda *_: None, **settings).batch_size(frames) == size  # type: ignore[arg-type, return-value]


def test_there_are_graphs_for_what_can_come_only() -> None:
    graphs = graphs_of(lambda *_: None, longest=26, max_pieces=4)  # type: ignore[arg-type, return-value]
    assert sorted(graphs.buckets) == [(n, f) for n in (1, 2, 4) for f in (2, 3, 5, 9, 17, 26)]
    assert graphs.buckets[0] == (4, 26)


@torch.inference_mode()
def test_what_cannot_be_captured_is_said_and_decoded_otherwise(
    fast: FastCodecDecoder, caplog: pytest.LogCaptureFixture
) -> None:
    scripted = Scripted(max_frames=32)
    graphs = Code2WavGraphs(fast, scripted, "cpu", longest=40, max_pieces=4)
    with caplog.at_level(logging.WARNING):
        graphs.capture()
    failed = {bucket for bucket in graphs.buckets if bucket[0] * bucket[1] > 32}
    assert scripted.sizes() == set(graphs.buckets) - failed
    assert scripted.counts == {f"failed[{bucket}]": 1 for bucket in failed}
    assert "Code2Wav: no CUDA graph for (4, 40): OutOfMemoryError: scripted" in caplog.messages

    assert graphs.batch_size([9] * 4) == 2, "what was captured is used"
    assert graphs.batch_size([40] * 4) == 1
    codes, first = random_codes(2, 16, 40), torch.zeros(2, dtype=torch.int64)
    for num_frames in (8, 35):
        audio = graphs.decode(codes, first, num_frames, ends=first + 40)[:, : num_frames * 1_920]
        torch.testing.assert_close(audio, fast(codes, first, num_frames), rtol=0, atol=1e-5)
    assert scripted.counts["hit"] == 1
    assert scripted.counts["miss[(2, 40)]"] == 1


@torch.inference_mode()
@pytest.mark.parametrize(
    ("length", "wanted", "miss"), [(27, 27, (1, 27)), (98, 98, (1, 98)), (98, 3, (1, 98)), (150, 60, (1, 150))]
)
@pytest.mark.parametrize("captures", [True, False])
def test_what_is_longer_than_every_graph_is_counted_and_decoded_otherwise(
    fast: FastCodecDecoder, length: int, wanted: int, miss: tuple[int, int], captures: bool
) -> None:
    scripted = Scripted(max_frames=100) if captures else CudaGraphs(False, "Code2Wav")
    graphs = Code2WavGraphs(fast, scripted, "cpu", longest=26, max_frames=100)
    graphs.capture()
    pool = DecodePool(fast, "cpu", PoolLimits(1_000), graphs=graphs)
    heard: dict[int, np.ndarray] = {}
    rows = {0: random_codes(length, 16, seed=1), 1: random_codes(20, 16, seed=2), 2: random_codes(20, 16, seed=3)}
    for i, codes in rows.items():
        pool.add(f"{i}", codes, 10 if i else wanted, lambda audio, i=i: heard.update({i: audio.copy()}))
    pool.advance(drain=True)
    for i, codes in rows.items():
        expected = fast(codes.T[None])[0, -(10 if i else wanted) * 1_920 :]
        np.testing.assert_allclose(heard[i], expected, rtol=0, atol=1e-5)
    assert scripted.counts == {f"miss[{miss}]": 1, "hit" if captures else "eager": 1}, "the others together"
