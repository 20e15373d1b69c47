"""Runner v2 on a CUDA device: a replayed graph, an eager run and runner v1 give the same codes; nothing is copied."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from tests.engine.asking import GREEDY
from tests.engine.tiny_stages import tiny_stages
from tts_batch.engine.compute_loop import ComputeLoop
from tts_batch.engine.generation import generate
from tts_batch.engine.prepare import Preparer
from tts_batch.engine.request import Reference, SamplingParams, SpeechRequest
from tts_batch.engine.runner import EngineRow, Runner
from tts_batch.engine.v1.runner import LockstepRunner
from tts_batch.engine.v2.frame_loop import FrameLoop, PrefillRows, PrefillTokens
from tts_batch.engine.v2.runner import ContinuousRunner, RunnerSettings
from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.tiny import build_tiny

NUM_ROWS = 24


@functools.cache
def load(dtype: torch.dtype = torch.float32) -> Qwen3TTS:
    return Qwen3TTS.load(resolve_checkpoint(str(build_tiny("tiny-random", "base"))), "cuda", dtype)


def requests(sampling: SamplingParams) -> list[SpeechRequest]:
    generator = torch.Generator().manual_seed(5)
    return [
        SpeechRequest(
            request_id=f"row{i}",
            text=" ".join(["some", "words", "to", "speak"] * (1 + i % 6)),
            task="base",
            seed=i * 104_729,
            max_frames=(3, 11, 20)[i % 3],
            sampling=sampling,
            reference=Reference(
                key=f"voice{i}",
                load=lambda: pytest.fail("not loaded"),
                text="A reference.",
                codes=torch.randint(0, 2048, (5 + 7 * i % 90, 16), generator=generator).numpy(),
                x_vector=torch.randn(64, generator=generator).numpy(),
            ),
            x_vector_only=i % 4 == 1,
        )
        for i in range(NUM_ROWS)
    ]


@functools.cache
@torch.inference_mode()
def prepared(sampling: SamplingParams) -> tuple[EngineRow, ...]:
    preparer = Preparer(load())
    return tuple(preparer.prepare(request) for request in requests(sampling))


def codes(runner: Runner, rows: Sequence[EngineRow]) -> dict[str, list[list[int]]]:
    waiting, decoded = [replace(row) for row in rows], {}
    while waiting or runner.busy:
        while waiting and runner.room > 0:
            runner.add(waiting.pop(0))
        for row in runner.step():
            decoded[row.request_id] = row.codes.tolist()
    return decoded


def continuous(**knobs: object) -> ContinuousRunner:
    settings = {"max_num_seqs": 16, "num_pages": 256, "max_frames": 64, "max_model_len": 1024, **knobs}
    return ContinuousRunner(load(), RunnerSettings(**settings))


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams()], ids=["greedy", "sampled"])
def test_replayed_eager_and_runner_v1_agree(sampling: SamplingParams) -> None:
    rows = prepared(sampling)
    expected = codes(LockstepRunner(load(), 8), rows)
    replayed, eager = continuous(), continuous(cuda_graph=False)
    replayed.warm_up()
    assert codes(eager, rows) == expected
    assert codes(replayed, rows) == expected
    assert set(replayed._graphs.counts) == {"hit"}, "every frame comes from a graph captured beforehand"
    assert set(eager._graphs.counts) == {"eager"}


@pytest.mark.parametrize("prefill_tokens", [512, 4_096, 16_384])
def test_prefill_budgets_change_nothing(prefill_tokens: int) -> None:
    rows = prepared(GREEDY)
    assert codes(continuous(prefill_tokens=prefill_tokens), rows) == codes(continuous(prefill_tokens=64), rows)


def test_long_windows_change_nothing() -> None:
    rows = prepared(GREEDY)
    assert codes(continuous(long_windows=True), rows) == codes(continuous(long_windows=False), rows)


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # of torch's profiler, at each start
def test_no_copy_between_host_and_device_inside_a_window() -> None:
    runner = continuous(frames_per_visit=4)
    runner.warm_up()
    for row in prepared(SamplingParams(min_new_tokens=64))[:16]:
        runner.add(row)
    runner.step()
    torch.cuda.synchronize()
    slots = runner._bucket_slots[16]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(4):
            runner._graphs.run(16, lambda: runner._loop.run_frame(slots))
        torch.cuda.synchronize()
    names = {event.name for event in profile.events()}
    assert any("_sample_kernel" in name for name in names), names
    assert not [name for name in names if "HtoD" in name or "DtoH" in name], names


def test_out_of_memory_lowers_the_limit_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = tiny_stages("base", "cuda", dtype="float32", max_num_seqs=16)
    engine = ComputeLoop(stages)
    asked = requests(GREEDY)
    expected = {result.request_id: result.codes.tolist() for result in generate(engine, iter(asked))}
    prefill, calls = FrameLoop.run_prefill, []

    def short_of_memory(self: FrameLoop, tokens: PrefillTokens, rows: PrefillRows) -> torch.Tensor:
        calls.append(rows.starts.numel())
        if calls[-1] > 4:
            raise torch.OutOfMemoryError("scripted")
        return prefill(self, tokens, rows)

    monkeypatch.setattr(FrameLoop, "run_prefill", short_of_memory)
    results = {result.request_id: result.codes.tolist() for result in generate(engine, iter(asked))}
    assert results == expected
    engine.close()
    assert stages.runner.max_num_seqs <= 4 < max(calls)
    engine.close()
