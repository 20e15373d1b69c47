"""NativeEngine on runner v2: every request ends once, in whatever state it is stopped, and nothing is left behind."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from tests.engine.asking import GREEDY, ask, voice
from tts_batch.engine.code2wav.decode_pool import PoolLimits
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.request import SamplingParams, SpeechRequest

Open = Callable[..., NativeEngine]
ENDLESS = SamplingParams(min_new_tokens=10_000)  # the budget ends it


def assert_nothing_left(engine: NativeEngine) -> None:
    stages = engine._stages
    scheduler = stages.runner._scheduler
    assert not stages.runner.busy
    assert scheduler.active == {}
    assert scheduler.num_waiting == 0
    assert scheduler.pages.num_free == scheduler.pages.num_pages
    assert len(scheduler._free_slots) == stages.runner.settings.max_num_seqs
    assert stages.code2wav._rows == {}
    assert stages.code2wav._pool._pieces == []
    assert stages.code2wav._pool._batches == []
    assert [t for t in threading.enumerate() if t.name == "tts-batch-compute"] == []


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


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
        clips[runner] = {result.request_id: result for result in engine.generate(requests)}
    assert_nothing_left(engine)
    for name, one in clips["v1"].items():
        two = clips["v2"][name]
        assert np.array_equal(one.codes, two.codes)
        assert (one.finish_reason, one.eos, one.effective) == (two.finish_reason, two.eos, two.effective)
        np.testing.assert_allclose(one.audio, two.audio, atol=5e-5)
        assert two.audio.flags.owndata


def test_cancelled_in_every_state(open_tiny: Open) -> None:
    engine = open_tiny(runner="v2", max_num_seqs=3)
    runner, code2wav = engine._stages.runner, engine._stages.code2wav
    code2wav._pool._limits = PoolLimits(max_frames=1_000, max_wait_s=60.0)  # so that rows are seen in there
    names = ["survivor", "decoding", "first frame", "code2wav", "delivery", "queued"]
    frames = {"survivor": 30, "code2wav": 2, "delivery": 2}
    requests = [ask(name, max_frames=frames.get(name, 90), seed=i, sampling=ENDLESS) for i, name in enumerate(names)]
    cancelled_at: dict[str, int] = {}
    step = runner.step

    def look_then_step() -> object:
        where = {row.request.request_id: frames for row, frames in runner.progress()}
        wanted = {"decoding": where.get("decoding", 0) >= 3, "first frame": where.get("first frame") == 0}
        wanted |= {"queued": where.get("queued") == -1, "code2wav": "code2wav" in dict(code2wav.progress())}
        for name, is_there in wanted.items():
            if is_there and name not in cancelled_at:
                cancelled_at[name] = where.get(name, -2)
                engine.cancel(name)
        return step()

    runner.step = look_then_step
    results = engine.generate(requests)
    ended = {}
    for result in results:
        assert result.request_id not in ended
        ended[result.request_id] = result
        if len(ended) == 1:
            wait_until(engine._generation._finished.is_set)  # all others wait for the receiver now
            engine.cancel("delivery")
    assert set(cancelled_at) == {"decoding", "first frame", "queued", "code2wav"}
    assert {name: result.finish_reason for name, result in ended.items()} == {
        name: "length" if name == "survivor" else "cancelled" for name in names
    }
    assert ended["survivor"].num_frames == 30
    assert_nothing_left(engine)


def test_cancels_from_another_thread_at_any_time(open_tiny: Open) -> None:
    engine, draw = open_tiny(runner="v2", max_num_seqs=6), random.Random(1)
    requests = [ask(str(i), max_frames=draw.randint(1, 6), seed=i) for i in range(80)]
    stop = threading.Event()

    def cancel_some() -> None:
        while not stop.is_set():
            engine.cancel(str(draw.randrange(80)))
            time.sleep(0.005)

    canceller = threading.Thread(target=cancel_some)
    canceller.start()
    results = list(engine.generate(requests))
    stop.set()
    canceller.join()
    assert Counter(r.request_id for r in results) == Counter(r.request_id for r in requests)
    reasons = Counter(r.finish_reason for r in results)
    assert set(reasons) <= {"cancelled", "length", "stop"}
    assert reasons["cancelled"] > 0
    assert_nothing_left(engine)


def test_closing_early_leaves_nothing(open_tiny: Open) -> None:
    engine = open_tiny(runner="v2", max_num_seqs=3)
    results = engine.generate(ask(str(i), max_frames=3) for i in range(1_000))
    next(results)
    results.close()
    assert_nothing_left(engine)
    assert next(engine.generate([ask("again")])).finish_reason == "length"


def test_too_little_memory_lowers_the_limit_and_goes_on(open_tiny: Open) -> None:
    engine = open_tiny(runner="v2", max_num_seqs=6)
    requests = [ask(str(i), max_frames=2 + i % 3, seed=i) for i in range(14)]
    expected = {r.request_id: r.codes for r in engine.generate(requests)}
    runner = engine._stages.runner
    run_frame, attempts = runner._loop.run_frame, []

    def small_memory(slots: torch.Tensor) -> None:
        attempts.append(len(slots))
        if len(slots) > 2 and len(attempts) > 3:
            raise torch.OutOfMemoryError("scripted")
        run_frame(slots)

    runner._loop.run_frame = small_memory
    results = list(engine.generate(requests))
    assert Counter(r.request_id for r in results) == Counter(list(expected))
    for result in results:
        assert np.array_equal(result.codes, expected[result.request_id])
    assert runner.max_num_seqs in (1, 2)
    scheduler = runner._scheduler
    assert scheduler.pages.num_free == scheduler.pages.num_pages


def test_a_row_that_never_fits_is_its_own_failure(open_tiny: Open) -> None:
    engine = open_tiny(runner="v2", max_num_seqs=2)
    results = {r.request_id: r for r in engine.generate([ask("huge", max_frames=9_000), ask("small")])}
    assert results["huge"].reason == "text_too_long"
    assert "a budget of 9000 frames does not fit" in results["huge"].error
    assert "--max-frames" in results["huge"].error
    assert results["small"].finish_reason == "length"
    assert_nothing_left(engine)


def test_a_long_stream_is_pulled_lazily_and_ends(open_tiny: Open) -> None:
    engine, pulled = open_tiny(runner="v2", max_num_seqs=4), []

    def requests() -> Iterator[SpeechRequest | None]:
        for i in range(40):
            pulled.append(i)
            yield ask(str(i), max_frames=1)
            yield None

    returned = 0
    for _ in engine.generate(requests()):
        returned += 1
        assert len(pulled) - returned <= 2 * 4 + 4 + 8 + 1  # slots, waiting, in Code2Wav, the queue, one on its way
    assert (len(pulled), returned) == (40, 40)
    assert_nothing_left(engine)
