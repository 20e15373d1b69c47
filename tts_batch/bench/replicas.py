"""Replicas of an engine, one a device or one a pair of them: how fast they are together, and one of them alone.

Each is a program of its own, replica.py. They begin a pass together, and whatever is waited for has one deadline.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from tts_batch.bench.replica import ReplicaJob
from tts_batch.errors import CannotContinueError, UsageError
from tts_batch.ipc.channel import Channel, Message
from tts_batch.run.devices import Device, find_devices

CLOSE_S = 20.0


def choose_devices(count: int | None, kind: str, *, split: bool) -> tuple[list[Device], list[Device]]:
    """The first `count` devices (None: all), and the same in pairs if `split`. On a CPU any count can be had.

    Raises UsageError when there are not so many, or when they make no pairs.
    """
    devices = find_devices(kind)
    if devices[0].kind == "cpu":
        devices *= count or 1
    count = count or len(devices)
    if count > len(devices):
        raise UsageError(f"--gpus {count}, but only {len(devices)} can be seen.")
    if not split:
        return devices[:count], []
    if count % 2:
        raise UsageError(f"--placement split needs pairs of devices, and {count} cannot be paired: choose with --gpus.")
    return devices[:count], [_pair(*devices[first : first + 2]) for first in range(0, count, 2)]


def _pair(first: Device, second: Device) -> Device:
    both = {name: f"{token},{second.environment[name]}" for name, token in first.environment.items()}
    return Device(first.kind, both)


@dataclass(frozen=True, slots=True)
class Pass:
    """Replicas that went over their shares of the rows at the same time: the measurement of each."""

    replicas: Sequence[dict[str, Any]]

    @property
    def audio_s_per_s(self) -> float:
        return self._sum("audio_s") / self.wall_s

    @property
    def wall_s(self) -> float:
        """From the first start to the last finish."""
        started_s = [measured["started_s"] for measured in self.replicas]
        ended_s = [measured["started_s"] + measured["wall_s"] for measured in self.replicas]
        return float(max(ended_s) - min(started_s))

    def as_dict(self) -> dict[str, Any]:
        totals = {name: self._sum(name) for name in ("attempted", "completed", "audio_s")}
        rates = {"audio_s_per_s": self.audio_s_per_s, "wall_s": self.wall_s}
        return {**rates, **totals, "replicas": list(self.replicas)}

    def _sum(self, name: str) -> float:
        total: float = sum(measured[name] for measured in self.replicas)
        return total


@dataclass(frozen=True, slots=True)
class Setting:
    """Replicas of one placement, and what they gave in each round."""

    name: str
    num_devices: int
    rounds: Sequence[Pass]
    alone_audio_s_per_s: float | None = None  # of one replica on one device with all rows; None: this is that one

    @property
    def audio_s_per_s(self) -> float:
        return median(found.audio_s_per_s for found in self.rounds)

    @property
    def speed_up(self) -> float:
        """How many times as fast as one replica alone."""
        return self.audio_s_per_s / (self.alone_audio_s_per_s or self.audio_s_per_s)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "num_devices": self.num_devices,
            "audio_s_per_s": self.audio_s_per_s,
            "speed_up": self.speed_up,
            "efficiency": self.speed_up / self.num_devices,
            "rounds": [found.as_dict() for found in self.rounds],
        }


class Replicas:
    """Programs that start together. What is waited for beyond the deadline, on the monotonic clock, ends them all."""

    def __init__(self, job: ReplicaJob, devices: Sequence[Device], deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._programs = [_Program(f"{i}", device) for i, device in enumerate(devices)]
        self._job = asdict(job)

    def __enter__(self) -> Replicas:
        try:
            for program in self._programs:
                program.start(self._job)
            self.descriptions = self._receive("ready", self._programs)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            for program in self._programs:
                program.channel.close()
            until_s = time.monotonic() + CLOSE_S
            for program in self._programs:
                with suppress(subprocess.TimeoutExpired):
                    program.process.wait(max(0.0, until_s - time.monotonic()))
        self._kill()

    def run(self, count: int, of: int) -> Pass:
        """Let the first `count` replicas go over a share of the rows each, the `of`-th part."""
        programs = self._programs[:count]
        for index, program in enumerate(programs):
            program.send({"index": index, "count": of})
        self._receive("armed", programs)
        for program in programs:
            program.send({"type": "go"})
        return Pass(self._receive("measured", programs))

    def _receive(self, kind: str, programs: Sequence[_Program]) -> list[Message]:
        """The next message of each program."""
        answers: dict[str, Message] = {}
        with selectors.DefaultSelector() as selector:
            for program in programs:
                selector.register(program.channel, selectors.EVENT_READ, program)
            while len(answers) < len(programs):
                ready = selector.select(max(0.0, self._deadline_s - time.monotonic()))
                if not ready:
                    late = ", ".join(program.name for program in programs if program.name not in answers)
                    raise CannotContinueError(f"The time was over before these replicas were {kind}: {late}.")
                for key, _ in ready:
                    message = key.data.read()
                    if message is not None:
                        answers[key.data.name] = message
        return [answers[program.name] for program in programs]

    def _kill(self) -> None:
        for program in self._programs:
            program.kill()


class _Program:
    """One replica, seen from here."""

    def __init__(self, name: str, device: Device) -> None:
        self.name = name
        self._device = device
        self._has_started = False

    def start(self, job: Message) -> None:
        self.channel, theirs = Channel.pair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tts_batch.bench.replica", str(theirs.fileno()), self.name],
                env={**os.environ, **self._device.environment},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # stdout is for data
                start_new_session=True,  # a Ctrl-C in the terminal reaches the parent alone
            )
        self._has_started = True
        self.send(job)

    def send(self, message: Message) -> None:
        with suppress(ConnectionError):  # it has ended: `read` says so
            self.channel.send(message)

    def read(self) -> Message | None:
        """What has come, if it is a whole message. Raises CannotContinueError when the program gave up."""
        messages = self.channel.receive_ready()
        if messages is None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(CLOSE_S)
            self.kill()
            raise CannotContinueError(f"Replica {self.name} ended with status {self.process.returncode}.")
        for message in messages:
            if message["type"] == "failed":
                raise CannotContinueError(f"Replica {self.name}: {message['error']}")
            return message
        return None

    def kill(self) -> None:
        """Leave no process behind."""
        if self._has_started:
            self.channel.close()
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(CLOSE_S)


def measure_replicas(
    job: ReplicaJob, devices: Sequence[Device], pairs: Sequence[Device], rounds: int, deadline_s: float
) -> Iterator[tuple[Setting, dict[str, Any]]]:
    """One replica alone with all rows and with its share, all together, and split ones on `pairs`, if any.

    Yields each with what the first of its replicas says of itself. Every setting's rows are the same, shared out.
    Raises CannotContinueError when a replica cannot be opened or fails, or the deadline has come.
    """
    config = replace(job.engine, device=devices[0].kind, placement="colocated")
    count = len(devices)
    with Replicas(replace(job, engine=config), devices, deadline_s) as replicas:

        def run(num: int, of: int) -> list[Pass]:
            return [replicas.run(num, of) for _ in range(rounds)]

        alone = Setting("one alone", 1, run(1, 1))
        one_s = alone.audio_s_per_s
        yield alone, replicas.descriptions[0]
        if count > 1:
            yield Setting("one alone, its share", 1, run(1, count), one_s), replicas.descriptions[0]
            yield Setting(f"{count} colocated", count, run(count, count), one_s), replicas.descriptions[0]
    if not pairs:
        return
    second = "cpu" if devices[0].kind == "cpu" else None  # a CPU has no second device: it stands in for one
    config = replace(config, placement="split", code2wav_device=second)
    with Replicas(replace(job, engine=config), pairs, deadline_s) as replicas:
        passes = [replicas.run(len(pairs), len(pairs)) for _ in range(rounds)]
        yield Setting(f"{len(pairs)} split", count, passes, one_s), replicas.descriptions[0]


TABLE_HEAD = f"{'replicas':22} devices  audio_s/s  {'(rounds)':18} speed-up  efficiency  wall_s  completed  each"


def table_line(found: dict[str, Any]) -> str:
    """One setting, as TABLE_HEAD names the columns; the last three are of the last round."""
    rates = [passed["audio_s_per_s"] for passed in found["rounds"]]
    last = found["rounds"][-1]
    completed = f"{last['completed']}/{last['attempted']}"
    each = ", ".join(f"{measured['audio_s_per_s']:.1f}" for measured in last["replicas"])
    return (
        f"{found['name']:22} {found['num_devices']:>7} {found['audio_s_per_s']:>10.1f}  "
        f"{f'({min(rates):.1f} to {max(rates):.1f})':18} {found['speed_up']:>8.3f} {found['efficiency']:>11.1%} "
        f"{last['wall_s']:>7.2f} {completed:>10}  {each}"
    )
