"""Chunked Code2Wav: chunks in order, one decoded at a time, together exactly the row's audio, whatever ends it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tests.engine.asking import ask, voice
from tests.engine.scripted import ScriptedRunner, collect, prepared_row, run_scripted, scripted_engine
from tts_batch.bench.player import Chunk, underruns_s
from tts_batch.engine.code2wav.chunked import ChunkedCode2Wav
from tts_batch.engine.code2wav.decode_pool import DecodePool, PoolLimits
from tts_batch.engine.code2wav.decoder import ExactDecoder
from tts_batch.engine.generation import generate
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.runner import EngineRow
from tts_batch.model.qwen3_tts import Qwen3TTS

Network = Callable[[torch.Tensor], torch.Tensor]


class Chunks:
    """Collects chunks, and checks their order as they come."""

    def __init__(self) -> None:
        self.audio: dict[str, list[np.ndarray]] = {}
        self.ended: set[str] = set()

    def __call__(self, request_id: str, index: int, audio: np.ndarray, is_last: bool) -> None:
        chunks = self.audio.setdefault(request_id, [])
        assert index == len(chunks)
        assert request_id not in self.ended
        assert audio.dtype == np.float32
        chunks.append(audio.copy())
        audio[:] = 9  # it is the caller's own
        if is_last:
            self.ended.add(request_id)

    def frames(self, request_id: str) -> list[int]:
        return [len(chunk) // 1_920 for chunk in self.audio[request_id]]


class Typist(ScriptedRunner):
    """A runner of one row whose codes come as the test says."""

    def __init__(self, row: EngineRow, codes: torch.Tensor) -> None:
        super().__init__()
        self.row, self.codes, self.num_frames = row, codes, 0

    def progress(self) -> list[tuple[EngineRow, int]]:
        return [(self.row, self.num_frames)] if self.num_frames < len(self.codes) else []

    def codes_so_far(self, row: EngineRow, num_frames: int) -> torch.Tensor:
        assert num_frames <= self.num_frames
        return self.codes[:num_frames].clone()


@pytest.fixture(scope="module")
def decoder(tiny_model: Callable[[str], Qwen3TTS]) -> Network:
    network = tiny_model("custom_voice").speech_tokenizer.decoder

    @torch.inference_mode()
    def decode(codes: torch.Tensor) -> torch.Tensor:
        return network(codes)

    return decode


def random_codes(frames: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 2_048, (frames, 16), generator=torch.Generator().manual_seed(seed))


def speak(decode: Network, codes: torch.Tensor, reference: torch.Tensor | None, step: int) -> tuple[Chunks, np.ndarray]:
    """Let the codes of one row come `step` frames at a time."""
    row, chunks = prepared_row(ask("a"), reference), Chunks()
    typist = Typist(row, codes)
    code2wav = ChunkedCode2Wav(DecodePool(ExactDecoder(decode), "cpu", PoolLimits(1_000)), typist, chunks)
    while typist.num_frames + step < len(codes):
        typist.num_frames += step
        assert code2wav.poll(drain=False) == []
        assert not code2wav.busy
    typist.num_frames = len(codes)
    code2wav.submit(row.end(codes.clone(), "stop", {}))
    results = []
    while code2wav.busy:
        results += code2wav.poll(drain=False)
    assert code2wav.progress() == []
    (result,) = results
    assert result.codes is None or np.array_equal(result.codes, codes)
    return chunks, result.audio


@pytest.mark.parametrize("ref_frames", [0, 1, 71, 72, 73, 100])
def test_each_chunk_is_decoded_behind_72_frames_and_trimmed_exactly(decoder: Network, ref_frames: int) -> None:
    reference, codes = random_codes(ref_frames, 1), random_codes(60, 2)
    chunks, audio = speak(decoder, codes, reference if ref_frames else None, step=1)
    assert chunks.frames("a") == [1, 1, 2, 4, 8, 16, 25, 3]
    assert chunks.ended == {"a"}
    assert np.array_equal(np.concatenate(chunks.audio["a"]), audio)
    sequence = torch.cat([reference, codes])
    for start, stop in [(0, 1), (1, 2), (2, 4), (4, 8), (8, 16), (16, 32), (32, 57), (57, 60)]:
        shown = sequence[max(0, ref_frames + start - 72) : ref_frames + stop]
        expected = decoder(shown.T[None])[0, -(stop - start) * 1_920 :].numpy()
        np.testing.assert_allclose(audio[start * 1_920 : stop * 1_920], expected, atol=2e-5)


@pytest.mark.parametrize(
    ("frames", "step", "expected"),
    [
        (0, 1, [0]),
        (1, 1, [1]),
        (2, 1, [1, 1]),
        (3, 1, [1, 1, 1]),
        (4, 3, [1, 1, 2]),
        (32, 1, [1, 1, 2, 4, 8, 16]),
        (32, 32, [1, 1, 2, 4, 8, 16]),
        (33, 5, [1, 1, 2, 4, 8, 16, 1]),
        (57, 9, [1, 1, 2, 4, 8, 16, 25]),
        (85, 85, [1, 1, 2, 4, 8, 16, 25, 25, 3]),
    ],
)
def test_chunks_cover_every_length(decoder: Network, frames: int, step: int, expected: list[int]) -> None:
    chunks, audio = speak(decoder, random_codes(frames), None, step)
    assert chunks.frames("a") == expected
    assert chunks.ended == {"a"}
    assert audio.shape == (frames * 1_920,)
    assert np.array_equal(np.concatenate(chunks.audio["a"]), audio)


@pytest.mark.parametrize(("speed", "runs_dry"), [(2.0, False), (1.2, True)])
def test_a_player_hears_no_gap_where_frames_are_made_twice_as_fast_as_they_play(speed: float, runs_dry: bool) -> None:
    chunks, _ = speak(lambda codes: torch.zeros(len(codes), codes.shape[2] * 1_920), random_codes(400), None, step=7)
    stops = np.cumsum(chunks.frames("a"))
    assert stops[-1] == 400
    heard = [
        Chunk(at_s=0.08 * stop / speed, audio_s=0.08 * frames)
        for stop, frames in zip(stops, chunks.frames("a"), strict=True)
    ]
    assert bool(underruns_s(heard)) == runs_dry


def test_a_last_chunk_may_be_empty_when_the_end_is_known_late(decoder: Network) -> None:
    row, codes, chunks = prepared_row(ask("a")), random_codes(32), Chunks()
    typist = Typist(row, random_codes(33))
    typist.codes[:32] = codes
    typist.num_frames = 32
    code2wav = ChunkedCode2Wav(DecodePool(ExactDecoder(decoder), "cpu", PoolLimits(1_000)), typist, chunks)
    for _ in range(7):
        code2wav.poll(drain=False)
    assert (chunks.frames("a"), chunks.ended) == ([1, 1, 2, 4, 8, 16], set())
    typist.num_frames = 33
    code2wav.submit(row.end(codes, "stop", {}))
    assert len(code2wav.poll(drain=True)) == 1
    assert (chunks.frames("a"), chunks.ended) == ([1, 1, 2, 4, 8, 16, 0], {"a"})


def test_out_of_memory_ends_the_row_without_a_last_chunk(decoder: Network) -> None:
    def small(codes: torch.Tensor) -> torch.Tensor:
        if codes.shape[2] > 30:
            raise torch.OutOfMemoryError("scripted")
        return decoder(codes)

    chunks, audio = speak(small, random_codes(60), None, step=1)
    assert audio is None
    assert (chunks.frames("a"), chunks.ended) == ([1, 1, 2, 4, 8], set())


class Short(DecodePool):
    """A device whose memory runs out a few times when a chunk is put together."""

    def __init__(self, decode: Network, failures: int) -> None:
        super().__init__(ExactDecoder(decode), "cpu", PoolLimits(1_000))
        self.failures = failures

    def add(self, *piece: object) -> None:
        if self.failures:
            self.failures -= 1
            raise torch.OutOfMemoryError("scripted")
        super().add(*piece)  # type: ignore[arg-type]


class ShortTypist(Typist):
    """The same, when codes are copied."""

    failures = 0

    def codes_so_far(self, row: EngineRow, num_frames: int) -> torch.Tensor:
        if self.failures:
            self.failures -= 1
            raise torch.OutOfMemoryError("scripted")
        return super().codes_so_far(row, num_frames)


@pytest.mark.parametrize("where", ["copy", "chunk"])
@pytest.mark.parametrize("failures", [1, 2])
def test_memory_that_runs_out_on_the_way_to_the_decoder_silences_the_row(
    decoder: Network, where: str, failures: int
) -> None:
    row, codes, chunks = prepared_row(ask("a")), random_codes(30), Chunks()
    typist = ShortTypist(row, codes)
    pool = Short(decoder, failures if where == "chunk" else 0)
    typist.failures = failures if where == "copy" else 0
    code2wav = ChunkedCode2Wav(pool, typist, chunks)
    for typist.num_frames in range(1, 30):
        assert code2wav.poll(drain=False) == []
    typist.num_frames = 30
    code2wav.submit(row.end(codes, "stop", {}))
    results = []
    while code2wav.busy:
        results += code2wav.poll(drain=False)
    assert len(results) == 1
    assert code2wav.progress() == []
    assert (pool.failures, typist.failures) == (0, 0)
    if failures == 1:  # there was room after all
        assert (chunks.frames("a"), chunks.ended) == ([1, 1, 2, 4, 8, 14], {"a"})
        assert np.array_equal(np.concatenate(chunks.audio["a"]), results[0].audio)
    else:
        assert results[0].audio is None
        assert (chunks.audio, chunks.ended) == ({}, set())


# Through the compute loop


def test_a_row_whose_codes_cannot_be_copied_fails_alone(decoder: Network) -> None:
    class Runner(ScriptedRunner):
        def codes_so_far(self, row: EngineRow, num_frames: int) -> torch.Tensor:
            if row.request_id == "b":
                raise torch.OutOfMemoryError("scripted")
            return super().codes_so_far(row, num_frames)

    runner = Runner(3)
    code2wav = ChunkedCode2Wav(DecodePool(ExactDecoder(decoder), "cpu", PoolLimits(1_000)), runner)
    requests = [ask(name, max_frames=30) for name in "abc"]
    results = run_scripted(requests, runner, code2wav=code2wav)
    ended = {r.request_id: (r.finish_reason, r.reason) for r in results}
    assert ended == {"a": ("stop", None), "b": ("error", "out_of_memory"), "c": ("stop", None)}


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_many_rows_are_spoken_side_by_side(open_tiny: Callable[..., NativeEngine], runner: str) -> None:
    chunks = Chunks()
    requests = [
        ask(str(i), task="base", reference=voice(f"v{i}", 0.3 + i), x_vector_only=i == 2, max_frames=n, seed=i)
        for i, n in enumerate([3, 30, 1, 28])
    ]
    engine = open_tiny("base", runner=runner, max_num_seqs=3, code2wav_mode="chunked", on_chunk=chunks)
    chunked = {r.request_id: r for r in generate(engine, requests)}
    whole = {r.request_id: r for r in generate(open_tiny("base", runner=runner, max_num_seqs=3), requests)}
    assert chunks.ended == set(chunked) == set(whole)
    for name, result in chunked.items():
        assert np.array_equal(result.codes, whole[name].codes)
        assert result.audio.shape == (result.num_frames * 1_920,)
        assert np.array_equal(np.concatenate(chunks.audio[name]), result.audio)
        # Behind all that was before them, chunks are the same sound as the whole.
        np.testing.assert_allclose(result.audio, whole[name].audio, atol=5e-5)


def test_a_row_that_does_not_fit_alone_is_forgotten(decoder: Network) -> None:
    def fail_late(runner: ScriptedRunner) -> None:
        if runner.num_steps > 5:
            raise torch.OutOfMemoryError("scripted")

    runner = ScriptedRunner(1, on_step=fail_late)
    code2wav = ChunkedCode2Wav(DecodePool(ExactDecoder(decoder), "cpu", PoolLimits(1_000)), runner)
    (result,) = run_scripted([ask("a", max_frames=30)], runner, code2wav=code2wav)
    assert result.reason == "out_of_memory"
    assert code2wav.progress() == []


def test_aborted_and_evicted_rows_are_forgotten(decoder: Network) -> None:
    chunks, failed = Chunks(), []

    def fail_once(runner: ScriptedRunner) -> None:
        if runner.num_steps == 10 and not failed:
            failed.append(1)
            raise torch.OutOfMemoryError("scripted")
        if runner.num_steps == 30:
            engine.abort_request("c")

    runner = ScriptedRunner(3, on_step=fail_once)
    code2wav = ChunkedCode2Wav(DecodePool(ExactDecoder(decoder), "cpu", PoolLimits(1_000)), runner, chunks)
    with scripted_engine(runner, code2wav=code2wav) as engine:
        engine.add_request(ask("a", max_frames=29))
        engine.add_request(ask("b", max_frames=2))
        ended = {r.request_id: (r.finish_reason, r.reason) for r in collect(engine, 2)}
        runner.num_steps = 20
        engine.add_request(ask("c", max_frames=30))
        engine.add_request(ask("d", max_frames=3))
        ended |= {r.request_id: (r.finish_reason, r.reason) for r in collect(engine, 2)}
    assert ended == {
        "a": ("error", "out_of_memory"),
        "b": ("stop", None),
        "c": ("cancelled", None),
        "d": ("stop", None),
    }
    assert chunks.ended == {"b", "d"}
    assert not code2wav.busy
