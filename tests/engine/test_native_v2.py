"""NativeEngine on runner v2: every request ends once, in whatever state it is stopped, and nothing is left behind."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from tests.engine.asking import GREEDY, ask, voice
from tests.engine.scripted import collect, compute_threads, wait_until
from tests.engine.tiny_stages import tiny_stages
from tts_batch.engine.compute_loop import ComputeLoop, Stages
from tts_batch.engine.generation import generate
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.request import SamplingParams, SpeechRequest, SpeechResult
from tts_batch.engine.v2.frame_loop import FrameLoop

Open = Callable[..., NativeEngine]
ENDLESS = SamplingParams(min_new_tokens=10_000)  # the budget ends it


def assert_nothing_left(stages: Stages) -> None:
    """Of a runner v2, once its engine rests."""
    scheduler = stages.runner.scheduler
    assert not stages.runner.busy
    assert not stages.code2wav.busy
    assert stages.runner.progress() == stages.code2wav.progress() == []
    assert scheduler.active == {}
    assert scheduler.waiting == []
    assert scheduler.pages.num_free == scheduler.pages.num_pages


@contextmanager
def computing(stages: Stages) -> Iterator[ComputeLoop]:
    """A loop over stages that leaves nothing in them."""
    engine = ComputeLoop(stages)
    try:
        yield engine
    finally:
        engine.close()
    assert_nothing_left(stages)
    assert compute_threads() == []


@pytest.mark.parametrize("kind", ["base", "custom_voice"])
def test_clips_are_runner_v1_s(open_tiny: Open, kind: str) -> None:
    requests = [
        ask(str(i), task=kind, text="word " * (i + 1), seed=i, max_frames=2 + i, sampling=GREEDY,
            speaker="ryan" if kind == "custom_voice" else None,
            reference=voice(f"v{i}", 0.3 + 0.2 * i) if kind == "base" else None, x_vector_only=i == 1)
        for i in range(4)
    ]  # fmt: skip
    clips = {}
    for runner in ("v1", "v2"):
        engine = open_tiny(kind, runner=runner, max_num_seqs=3)
        clips[runner] = {result.request_id: result for result in generate(engine, requests)}
    for name, one in clips["v1"].items():
        two = clips["v2"][name]
        assert np.array_equal(one.codes, two.codes)
        assert (one.finish_reason, one.eos, one.effective) == (two.finish_reason, two.eos, two.effective)
        np.testing.assert_allclose(one.audio, two.audio, atol=5e-5)
        assert two.audio.flags.owndata


def test_aborted_in_every_state() -> None:
    # Clips wait for others, so that they are seen in Code2Wav.
    waits = {"code2wav_frames": "1000", "code2wav_pieces": "100", "code2wav_wait_s": "60"}
    stages = tiny_stages(runner="v2", max_num_seqs=3, options=waits)
    runner, code2wav = stages.runner, stages.code2wav
    names = ["survivor", "decoding", "first frame", "code2wav", "delivery", "queued"]
    frames = {"survivor": 30, "code2wav": 2, "delivery": 2, "queued": 1}  # the longest start first
    requests = [ask(name, max_frames=frames.get(name, 90), seed=i, sampling=ENDLESS) for i, name in enumerate(names)]
    aborted_at: dict[str, int] = {}
    step = runner.step

    def look_then_step() -> object:
        where = {row.request_id: frames for row, frames in runner.progress()}
        wanted = {"decoding": where.get("decoding", 0) >= 3, "first frame": where.get("first frame") == 0}
        wanted |= {"queued": where.get("queued") == -1, "code2wav": "code2wav" in dict(code2wav.progress())}
        for name, is_there in wanted.items():
            if is_there and name not in aborted_at:
                aborted_at[name] = where.get(name, -2)
                engine.abort_request(name)
        return step()

    runner.step = look_then_step
    with computing(stages) as engine:
        for request in requests:
            engine.add_request(request)
        wait_until(lambda: len(aborted_at) == 4 and not runner.busy and not code2wav.busy)  # all results wait
        engine.abort_request("delivery")
        ended = {result.request_id: result for result in collect(engine, len(names))}
    assert set(aborted_at) == {"decoding", "first frame", "queued", "code2wav"}
    assert {name: result.finish_reason for name, result in ended.items()} == {
        name: "length" if name == "survivor" else "cancelled" for name in names
    }
    assert ended["survivor"].num_frames == 30


def test_aborts_at_any_time() -> None:
    draw = random.Random(1)
    requests = [ask(str(i), max_frames=draw.randint(1, 6), seed=i) for i in range(80)]
    ended: list[SpeechResult] = []
    with computing(tiny_stages(runner="v2", max_num_seqs=6)) as engine:
        for request in requests:
            engine.add_request(request)
        while len(ended) < len(requests):
            ended += engine.step(0.005)
            engine.abort_request(str(draw.randrange(80)))
    assert Counter(r.request_id for r in ended) == Counter(r.request_id for r in requests)
    reasons = Counter(r.finish_reason for r in ended)
    assert set(reasons) <= {"cancelled", "length", "stop"}
    assert reasons["cancelled"] > 0


def test_closing_early_leaves_nothing() -> None:
    with computing(tiny_stages(runner="v2", max_num_seqs=3)) as engine:
        for i in range(1_000):
            engine.add_request(ask(str(i), max_frames=3))
        collect(engine, 1)


def test_too_little_memory_lowers_the_limit_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [ask(str(i), max_frames=2 + i % 3, seed=i) for i in range(14)]
    run_frame, attempts = FrameLoop.run_frame, []

    def small_memory(self: FrameLoop, slots: torch.Tensor) -> None:
        attempts.append(len(slots))
        if len(slots) > 2 and len(attempts) > 3:
            raise torch.OutOfMemoryError("scripted")
        run_frame(self, slots)

    stages = tiny_stages(runner="v2", max_num_seqs=6)
    with computing(stages) as engine:
        expected = {r.request_id: r.codes for r in generate(engine, requests)}
        monkeypatch.setattr(FrameLoop, "run_frame", small_memory)
        results = list(generate(engine, requests))
    assert Counter(r.request_id for r in results) == Counter(list(expected))
    for result in results:
        assert np.array_equal(result.codes, expected[result.request_id])
    assert stages.runner.max_num_seqs in (1, 2)


def test_a_row_that_never_fits_is_its_own_failure() -> None:
    with computing(tiny_stages(runner="v2", max_num_seqs=2)) as engine:
        results = {r.request_id: r for r in generate(engine, [ask("huge", max_frames=9_000), ask("small")])}
    assert results["huge"].reason == "text_too_long"
    assert "a budget of 9000 frames does not fit" in results["huge"].error
    assert "--max-frames" in results["huge"].error
    assert results["small"].finish_reason == "length"


def test_a_long_stream_is_pulled_lazily_and_ends() -> None:
    pulled = []

    def requests() -> Iterator[SpeechRequest]:
        for i in range(40):
            pulled.append(i)
            yield ask(str(i), max_frames=1)

    returned = 0
    with computing(tiny_stages(runner="v2", max_num_seqs=4)) as engine:
        for _ in generate(engine, requests()):
            returned += 1
            # at most: slots, waiting, queued, in Code2Wav, results, one on its way; and a whole `step` of results
            assert len(pulled) - returned <= 3 * 4 + 4 + 8 + 1
    assert (len(pulled), returned) == (40, 40)
