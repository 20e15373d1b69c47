"""Runner v2 against runner v1: the same codes, whatever is admitted, in whatever order, beside whomever."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.asking import GREEDY
from tts_batch.engine.loops import LoopLimits
from tts_batch.engine.prepare import Preparer
from tts_batch.engine.request import Reference, SamplingParams, SpeechRequest
from tts_batch.engine.runner import EngineRow, Runner
from tts_batch.engine.staging import stage
from tts_batch.engine.v1.runner import LockstepRunner
from tts_batch.engine.v2 import runner as runner_v2
from tts_batch.engine.v2.runner import ContinuousRunner, RunnerSettings
from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.tiny import build_tiny

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
SAMPLED = SamplingParams()
NUM_ROWS = 7


@functools.cache
def load(kind: str) -> Qwen3TTS:
    """In float64, so that the two runners' different orders of summing meet no near tie."""
    return Qwen3TTS.load(resolve_checkpoint(str(build_tiny("tiny-random", kind))), "cpu", torch.float64)


@functools.cache
def prepared(kind: str, sampling: SamplingParams) -> tuple[EngineRow, ...]:
    """Rows of many lengths and layouts, prepared once."""
    generator = torch.Generator().manual_seed(3)
    rows = []
    with torch.inference_mode():
        for i in range(NUM_ROWS):
            reference = Reference(
                key=f"voice{i}",
                load=lambda: pytest.fail("a reference with codes and x-vector is not loaded"),
                text="A reference." * (i % 3 + 1),
                codes=torch.randint(0, 2048, (3 + 11 * i % 40, 16), generator=generator).numpy(),
                x_vector=torch.randn(64, generator=generator).numpy(),
            )
            request = SpeechRequest(
                request_id=f"row{i}",
                text=" ".join(WORDS[: i + 1]),
                task=kind,
                seed=i * 7919,
                max_frames=(1, 3, 7, 11)[i % 4],
                sampling=sampling,
                speaker=("ryan", "eric", "vivian")[i % 3] if kind == "custom_voice" else None,
                reference=reference if kind == "base" else None,
                x_vector_only=i % 4 == 1,
                non_streaming=(None, True, False)[i % 3],
            )
            rows.append(Preparer(load(kind)).prepare(request))
    return tuple(rows)


def run(runner: Runner, rows: Sequence[EngineRow], cancel: str | None = None) -> dict[str, EngineRow]:
    """Feed rows as there is room; cancel one of them when the first ends."""
    waiting, decoded = [replace(row) for row in rows], {}
    for _ in range(10_000):
        while waiting and runner.room > 0:
            runner.add(waiting.pop(0))
        if not runner.busy:
            return decoded
        for row in runner.step():
            assert row.request_id not in decoded
            decoded[row.request_id] = row
        if cancel and decoded and cancel not in decoded:
            assert runner.cancel(cancel) or cancel in {row.request_id for row in waiting}
            waiting = [row for row in waiting if row.request_id != cancel]
            cancel = None
    raise AssertionError("the runner does not come to an end")


@functools.cache
def reference_codes(kind: str, sampling: SamplingParams) -> dict[str, tuple[list[list[int]], str, bool]]:
    return summary(run(LockstepRunner(load(kind), 4), prepared(kind, sampling)))


def summary(decoded: dict[str, EngineRow]) -> dict[str, tuple[list[list[int]], str, bool]]:
    return {name: (row.codes.tolist(), row.finish_reason, row.eos) for name, row in decoded.items()}


def continuous(kind: str, **knobs: int) -> ContinuousRunner:
    knobs = {"max_num_seqs": 3, "num_pages": 64, "page_size": 16, "frames_per_visit": 2} | knobs
    return ContinuousRunner(load(kind), RunnerSettings(max_frames=64, max_model_len=256, **knobs))


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["base", "custom_voice"])
@settings(max_examples=6, deadline=None)
@given(
    order=st.permutations(range(NUM_ROWS)),
    max_num_seqs=st.integers(1, NUM_ROWS + 1),
    prefill_tokens=st.sampled_from([1, 2, 7, 30, 100, 8192]),
    frames_per_visit=st.integers(1, 5),
    page_size=st.sampled_from([16, 32, 64]),
    cancelled=st.none() | st.integers(0, NUM_ROWS - 1),
)
def test_the_codes_are_runner_v1_s(
    kind: str,
    sampling: SamplingParams,
    order: list[int],
    max_num_seqs: int,
    prefill_tokens: int,
    frames_per_visit: int,
    page_size: int,
    cancelled: int | None,
) -> None:
    runner = continuous(
        kind,
        max_num_seqs=max_num_seqs,
        prefill_tokens=prefill_tokens,
        frames_per_visit=frames_per_visit,
        page_size=page_size,
    )
    rows = prepared(kind, sampling)
    cancel = None if cancelled is None else f"row{cancelled}"
    decoded = summary(run(runner, [rows[i] for i in order], cancel))
    expected = reference_codes(kind, sampling)
    assert {name: row for name, row in expected.items() if name in decoded} == decoded
    assert set(expected) - set(decoded) <= {cancel}
    assert not runner.busy
    assert runner.scheduler.pages.num_free == 64
    assert runner.scheduler.active == {}


def test_a_used_slot_leaves_no_trace() -> None:
    runner = continuous("custom_voice", max_num_seqs=1)
    rows = prepared("custom_voice", GREEDY)
    expected = reference_codes("custom_voice", GREEDY)
    for row in (rows[6], rows[0], rows[3], rows[6]):
        assert summary(run(runner, [row])) == {row.request_id: expected[row.request_id]}


def test_a_row_that_was_evicted_and_admitted_again_has_no_frames_yet() -> None:
    runner = continuous("custom_voice", max_num_seqs=1)
    runner.add(replace(prepared("custom_voice", GREEDY)[3]))
    while runner.progress()[0][1] < 3:
        runner.step()
    (row,) = runner.evict()
    runner.add(row)
    assert runner.progress() == [(row, -1)]
    runner.start_waiting()
    assert runner.progress() == [(row, 0)]


def test_evicted_rows_start_again() -> None:
    runner = continuous("base")
    rows = prepared("base", GREEDY)
    for row in rows[:3]:
        runner.add(row)
    for _ in range(4):
        runner.step()
    evicted = runner.evict()
    assert {row.request_id for row in evicted} <= {"row0", "row1", "row2"}
    assert not runner.busy
    expected = reference_codes("base", GREEDY)
    assert summary(run(runner, evicted)) == {row.request_id: expected[row.request_id] for row in evicted}


@settings(max_examples=8, deadline=None)
@given(step=st.integers(0, 9), cancelled=st.integers(0, 4), frames_per_visit=st.integers(1, 3))
def test_a_row_cancelled_at_any_step_leaves_the_others_untouched(
    step: int, cancelled: int, frames_per_visit: int
) -> None:
    runner = continuous("custom_voice", max_num_seqs=3, frames_per_visit=frames_per_visit)
    rows = prepared("custom_voice", SAMPLED)[:5]
    for row in rows:
        if runner.room:
            runner.add(row)
    waiting = list(rows[runner.scheduler.look_ahead :])
    decoded: dict[str, EngineRow] = {}
    for _ in range(step):
        decoded |= {row.request_id: row for row in runner.step()}
    name = f"row{cancelled}"
    found = runner.cancel(name)
    assert not runner.cancel(name)
    assert found == (name not in decoded and rows[cancelled] not in waiting)
    decoded |= run(runner, waiting)
    expected = reference_codes("custom_voice", SAMPLED)
    names = {row.request_id for row in rows} - ({name} if found else set())
    assert summary(decoded) == {name: expected[name] for name in names}
    assert runner.scheduler.pages.num_free == 64


@pytest.mark.parametrize("max_num_seqs", [1, 7, 64])
def test_sampled_codes_are_the_same_at_every_batch_size_and_in_any_order(max_num_seqs: int) -> None:
    rows = many_rows()
    order = random.Random(max_num_seqs).sample(range(64), 64)
    runner = continuous("custom_voice", max_num_seqs=max_num_seqs, num_pages=512)
    decoded = summary(run(runner, [rows[i] for i in order]))
    assert decoded == many_codes()
    assert len({str(codes) for codes, _, _ in decoded.values()}) > 60


@functools.cache
def many_rows() -> tuple[EngineRow, ...]:
    rows = prepared("custom_voice", SAMPLED)
    return tuple(
        replace(rows[i % 7], request=replace(rows[i % 7].request, request_id=f"{i}", seed=i, max_frames=1 + i % 2))
        for i in range(64)
    )


@functools.cache
def many_codes() -> dict[str, tuple[list[list[int]], str, bool]]:
    return summary(run(LockstepRunner(load("custom_voice"), 16), many_rows()))


def test_both_runners_end_a_loop_at_the_same_frame() -> None:
    limits = LoopLimits(repeated_frames=1, few_codes_frames=2)  # so strict that a random model meets them
    rows = [replace(row, request=replace(row.request, max_frames=40)) for row in prepared("custom_voice", SAMPLED)[:4]]
    knobs = RunnerSettings(2, 64, 16, frames_per_visit=3, max_frames=64, max_model_len=256, loop_limits=limits)
    runner = ContinuousRunner(load("custom_voice"), knobs)
    decoded = summary(run(runner, rows))
    assert decoded == summary(run(LockstepRunner(load("custom_voice"), 4, limits), rows))
    assert "loop" in {finish_reason for _, finish_reason, _ in decoded.values()}
    assert summary(run(runner, rows[::-1])) == decoded  # the count of a slot's last row is not its next one's


@pytest.mark.parametrize("make", [lambda: LockstepRunner(load("custom_voice"), 4), lambda: continuous("custom_voice")])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_a_row_that_may_not_end_by_itself_has_exactly_its_budget(
    make: Callable[[], Runner], sampling: SamplingParams
) -> None:
    rows = []
    for row, frames in zip(prepared("custom_voice", sampling), (1, 2, 5, 8, 13, 21, 34), strict=True):
        endless = replace(row.request, max_frames=frames, sampling=replace(sampling, min_new_tokens=frames + 1))
        rows.append(replace(row, request=endless))
    ended = run(make(), rows)
    for row in rows:
        result = ended[row.request_id]
        assert len(result.codes) == row.request.max_frames
        assert (result.finish_reason, result.eos) == ("length", False)


def test_a_text_longer_than_its_budget_is_spoken_as_far_as_that_goes() -> None:
    rows = prepared("custom_voice", GREEDY)
    long = replace(rows[0], prompt=replace(rows[0].prompt, trailing_ids=tuple(range(100, 400))))  # room for 64
    rows = tuple(replace(long, request=replace(long.request, request_id=str(n), max_frames=n)) for n in (0, 5, 64))
    decoded = summary(run(continuous("custom_voice"), rows))
    assert decoded == summary(run(LockstepRunner(load("custom_voice"), 4), rows))
    assert [len(codes) for codes, _, _ in (decoded["0"], decoded["5"])] == [0, 5]


def test_parameters_at_their_ends() -> None:
    ends = [
        {"top_k": 2**31 - 1, "subtalker_top_k": 2**31 - 1, "min_new_tokens": 2**31 - 1},
        {"temperature": 1e-30, "subtalker_temperature": 1e-30, "top_p": 0.5},
        {"temperature": 1e30, "subtalker_temperature": 1e30, "repetition_penalty": 1e30},
        {"top_k": 1, "subtalker_top_k": 1, "top_p": 1e-6, "subtalker_top_p": 1e-6},
    ]
    first = prepared("custom_voice", SAMPLED)[3]
    rows = [
        replace(
            first, request=replace(first.request, request_id=f"{i} {seed}", seed=seed, sampling=SamplingParams(**p))
        )
        for i, p in enumerate(ends)
        for seed in (0, 2**63 - 1)
    ]
    decoded = summary(run(continuous("custom_voice"), rows))
    assert decoded == summary(run(LockstepRunner(load("custom_voice"), 4), rows))
    assert decoded["0 0"][1] == "length"


def test_rows_that_memory_ran_out_for_when_they_ended_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, runner = prepared("custom_voice", GREEDY), continuous("custom_voice")
    for row in rows[:3]:
        runner.add(row)

    def no_memory(device: torch.device, *hosts: torch.Tensor) -> list[torch.Tensor]:
        if [host.dtype for host in hosts] == [torch.int64]:  # the slots of rows that ended
            raise torch.OutOfMemoryError("scripted")
        return stage(device, *hosts)

    with monkeypatch.context() as patch:
        patch.setattr(runner_v2, "stage", no_memory)
        with pytest.raises(torch.OutOfMemoryError):
            for _ in range(20):
                runner.step()
    evicted = runner.evict()
    assert len(evicted) == 3
    expected = reference_codes("custom_voice", GREEDY)
    assert summary(run(runner, evicted)) == {name: expected[name] for name in ("row0", "row1", "row2")}


def test_windows_are_longer_where_few_rows_decode_in_graphs_and_none_waits() -> None:
    runner = continuous("custom_voice", max_num_seqs=64, long_windows=True)
    buckets = (1, 4, 8, 16, 32, 64)
    assert [runner._frames_to_launch(bucket) for bucket in buckets] == [2] * 6  # without graphs
    runner._graphs.enabled = True
    assert [runner._frames_to_launch(bucket) for bucket in buckets] == [8, 8, 8, 4, 2, 2]
    runner.add(prepared("custom_voice", SAMPLED)[0])
    assert [runner._frames_to_launch(bucket) for bucket in buckets] == [2] * 6  # a row waits for a place
    assert not RunnerSettings(4, 64).long_windows


@pytest.mark.parametrize("at_frame", [0, 5])
def test_a_row_whose_numbers_are_lost_ends_as_an_error_and_alone(at_frame: int) -> None:
    rows, runner = prepared("custom_voice", SAMPLED), continuous("custom_voice", frames_per_visit=1)
    lost = replace(rows[0], request=replace(rows[0].request, max_frames=60))
    runner.add(lost)
    for _ in range(1 + at_frame):
        assert runner.step() == []
    runner._loop.kv_pages[:, 1, list(runner.scheduler.active[0].pages)] = torch.nan
    decoded = summary(run(runner, rows[1:]))
    codes, finish_reason, eos = decoded.pop("row0")
    assert (finish_reason, eos) == ("error", False)
    assert len(codes) <= at_frame + 3
    expected = reference_codes("custom_voice", SAMPLED)
    assert decoded == {name: row for name, row in expected.items() if name != "row0"}
    assert summary(run(runner, rows)) == expected  # in pages and slots that held what is not a number
