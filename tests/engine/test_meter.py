"""The meter: seconds and counts add up, the difference of two readings is what came between, failures count nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from tests.engine.asking import ask
from tts_batch.engine.generation import generate
from tts_batch.engine.meter import Meter, Reading
from tts_batch.engine.native import NativeEngine

CPU = torch.device("cpu")


def test_seconds_add_up_by_name() -> None:
    meter = Meter()
    for stage in ("prefill", "frame_loop", "frame_loop"):
        with meter.on_device(stage, CPU), meter.on_host("decode"):
            time.sleep(0.01)
    read = meter.read()
    assert 0.01 <= read.device_s["prefill"] < read.device_s["frame_loop"]
    assert read.host_s["decode"] == pytest.approx(sum(read.device_s.values()), abs=0.005)


def test_a_reading_does_not_change_and_two_differ_by_what_came_between() -> None:
    meter = Meter()
    meter.counts["frames"] += 3
    meter.graphs["frame_loop"]["hit"] += 3
    earlier = meter.read()
    meter.counts["frames"] += 2
    meter.graphs["frame_loop"]["miss[24]"] += 1
    meter.graphs["code2wav"]["hit"] += 1
    assert earlier.counts == {"frames": 3}
    between = meter.read().since(earlier)
    assert between == Reading({}, {}, {"frames": 2}, {"frame_loop": {"miss[24]": 1}, "code2wav": {"hit": 1}})


def test_what_fails_on_the_device_is_not_counted_and_the_host_time_is() -> None:
    meter = Meter()
    with pytest.raises(torch.OutOfMemoryError), meter.on_host("decode"), meter.on_device("prefill", CPU):
        raise torch.OutOfMemoryError("scripted")
    assert (meter.read().device_s, list(meter.read().host_s)) == ({}, ["decode"])


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_an_engine_says_where_its_time_went(open_tiny: Callable[..., NativeEngine], runner: str) -> None:
    engine = open_tiny(runner=runner)
    before = engine.read_meter()
    results = list(generate(engine, [ask(str(i), max_frames=3, seed=i) for i in range(3)]))
    read = engine.read_meter().since(before)
    assert set(read.device_s) == {"prefill", "frame_loop", "code2wav"}
    assert set(read.host_s) >= {"prepare", "decode", "code2wav"}
    assert read.counts["frames"] >= 3
    assert read.counts["code2wav_frames"] == sum(result.num_frames for result in results)
    assert read.counts["decoded_frames"] >= read.counts["code2wav_frames"]
    assert read.counts["prompt_tokens"] > 3
    assert read.graphs["code2wav"] == {"eager": 3}
    if runner == "v2":
        assert read.graphs["frame_loop"] == {"eager": read.counts["frames"]}
    assert max(read.device_s.values()) < sum(read.host_s.values())
