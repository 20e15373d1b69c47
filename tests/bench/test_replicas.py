"""Replicas: which devices they get, how passes add up, and that none outlives a failure or the deadline."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tts_batch.bench import replicas as replicas_module
from tts_batch.bench.replica import ReplicaJob
from tts_batch.bench.replicas import TABLE_HEAD, Pass, Replicas, Setting, choose_devices, table_line
from tts_batch.bench.workload import Workload
from tts_batch.engine.request import EngineConfig
from tts_batch.errors import CannotContinueError, UsageError
from tts_batch.model.tiny import build_tiny
from tts_batch.run.devices import Device

CPU = Device("cpu")


def measured(started_s: float, wall_s: float, audio_s: float, completed: int = 5) -> dict[str, float]:
    """What a replica says of a pass of five rows."""
    rate = audio_s / wall_s
    return {"started_s": started_s, "wall_s": wall_s, "audio_s": audio_s, "attempted": 5, "completed": completed,
            "audio_s_per_s": rate}  # fmt: skip


def job(**settings: object) -> ReplicaJob:
    config = EngineConfig(model=str(build_tiny("tiny-random", "base")), device="cpu", **settings)
    return ReplicaJob(None, config, Workload("fixed", 2, 1, x_vector_only=True), cold=False, at_once=None)


@pytest.fixture
def pids(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Every program that a test starts; none may be left after it."""
    started: list[int] = []
    start = replicas_module._Program.start

    def note(program: replicas_module._Program, job: dict[str, object]) -> None:
        start(program, job)
        started.append(program.process.pid)

    monkeypatch.setattr(replicas_module._Program, "start", note)
    yield started
    assert started
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_pass_lasts_from_the_first_start_to_the_last_finish() -> None:
    found = Pass([measured(100.0, 4.0, 40.0), measured(101.0, 5.0, 50.0, completed=4)])
    assert found.wall_s == 6.0
    assert found.audio_s_per_s == 15.0
    assert found.as_dict().items() >= {"attempted": 10, "completed": 9, "audio_s": 90.0, "wall_s": 6.0}.items()


def test_speed_up_and_efficiency_are_held_against_one_replica_alone() -> None:
    alone = Setting("one alone", 1, [Pass([measured(0.0, 10.0, audio_s)]) for audio_s in (90.0, 100.0, 120.0)])
    assert (alone.audio_s_per_s, alone.speed_up) == (10.0, 1.0)
    both = Setting("2 colocated", 2, [Pass([measured(0.0, 5.0, 45.0), measured(0.0, 5.0, 50.0)])], alone.audio_s_per_s)
    assert both.as_dict().items() >= {"audio_s_per_s": 19.0, "speed_up": 1.9, "efficiency": 0.95}.items()
    line = table_line(both.as_dict())
    for word in ("2 colocated", "19.0", "1.900", "95.0%", "5.00", "10/10", "9.0, 10.0"):
        assert word in line
    for head, word in (("audio_s/s", "19.0"), ("completed", "10/10"), ("efficiency", "95.0%")):
        assert TABLE_HEAD.index(head) + len(head) == line.index(word) + len(word)
    assert TABLE_HEAD.index("each") == line.index("9.0, 10.0")


def test_devices_are_the_first_ones_and_their_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-8b2c,MIG-1/2/0,7")

    def tokens(count: int | None, *, split: bool) -> list[list[str]]:
        chosen = choose_devices(count, "cuda", split=split)
        return [[device.environment["CUDA_VISIBLE_DEVICES"] for device in devices] for devices in chosen]

    assert tokens(2, split=False) == [["3", "GPU-8b2c"], []]
    assert tokens(2, split=True) == [["3", "GPU-8b2c"], ["3,GPU-8b2c"]]
    assert tokens(None, split=True) == [["3", "GPU-8b2c", "MIG-1/2/0", "7"], ["3,GPU-8b2c", "MIG-1/2/0,7"]]
    with pytest.raises(UsageError, match="--gpus 5, but only 4 can be seen"):
        tokens(5, split=False)
    with pytest.raises(UsageError, match="pairs of devices, and 3 cannot be paired"):
        tokens(3, split=True)
    with pytest.raises(UsageError, match="and 1 cannot"):
        tokens(1, split=True)


def test_on_a_cpu_there_are_as_many_as_asked_for() -> None:
    assert choose_devices(None, "cpu", split=False) == ([CPU], [])
    assert choose_devices(4, "cpu", split=True) == ([CPU] * 4, [CPU] * 2)


def test_passes_begin_together(pids: list[int]) -> None:
    with Replicas(job(), [CPU, CPU], time.monotonic() + 200) as replicas:
        assert [said["engine"]["device"] for said in replicas.descriptions] == ["cpu", "cpu"]
        found = replicas.run(2, 2)
        (alone,) = replicas.run(1, 1).replicas
    assert [(each["completed"], each["attempted"]) for each in found.replicas] == [(1, 1), (1, 1)]
    first, second = (each["started_s"] for each in found.replicas)
    assert abs(first - second) < found.wall_s
    assert found.wall_s < sum(each["wall_s"] for each in found.replicas)
    assert (alone["completed"], alone["audio_s"]) == (2, 2 * 52 / 12.5)
    assert len(pids) == 2


def test_the_deadline_ends_them(pids: list[int]) -> None:
    started_s = time.monotonic()
    with (
        pytest.raises(CannotContinueError, match=r"The time was over before these replicas were ready: 0, 1\."),
        Replicas(job(), [CPU, CPU], started_s + 0.5),
    ):
        pass
    assert time.monotonic() - started_s < 20


def test_an_engine_that_cannot_be_opened_is_said(pids: list[int]) -> None:
    with (
        pytest.raises(CannotContinueError, match=r"Replica 0: profile 'b3' is not one of"),
        Replicas(job(profile="b3"), [CPU], time.monotonic() + 200),
    ):
        pass


def test_a_replica_that_dies_ends_the_others(pids: list[int]) -> None:
    with (
        pytest.raises(CannotContinueError, match=r"Replica 1 ended with status -9\."),
        Replicas(job(), [CPU, CPU], time.monotonic() + 200) as replicas,
    ):
        os.kill(pids[1], signal.SIGKILL)
        replicas.run(2, 2)
