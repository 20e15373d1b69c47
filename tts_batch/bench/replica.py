"""The replica program, `python -m tts_batch.bench.replica FD NAME`: one engine, which measures what FD tells it.

It ends when the other end of the socket is closed.
"""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tts_batch.bench.workload import BenchRow, Workload
from tts_batch.engine.errors import EngineError
from tts_batch.engine.request import EngineConfig
from tts_batch.ipc.channel import Channel, Message

if TYPE_CHECKING:
    from tts_batch.bench.measure import Measurement


@dataclass(frozen=True, slots=True)
class ReplicaJob:
    """What a replica opens, and what it will be asked to measure."""

    shape: str | None  # a released shape with random weights, or else the engine's model
    engine: EngineConfig
    workload: Workload
    cold: bool  # voices are encoded within each pass
    at_once: int | None  # rows in flight; None: as many as the engine takes

    @classmethod
    def from_message(cls, message: Message) -> ReplicaJob:
        engine, workload = EngineConfig(**message["engine"]), Workload(**message["workload"])
        return cls(message["shape"], engine, workload, message["cold"], message["at_once"])


def share(rows: Sequence[BenchRow], index: int, count: int) -> list[BenchRow]:
    """Every count-th row by length, in the order of the rows: shares of like cost."""
    by_length = sorted(range(len(rows)), key=lambda i: rows[i].num_frames)
    return [rows[i] for i in sorted(by_length[index::count])]


class Replica:
    """A warm engine and the rows of the workload."""

    def __init__(self, job: ReplicaJob) -> None:
        from tts_batch.bench.engines import load_model, open_bench_engine, random_model

        started_s = time.monotonic()
        network = random_model(job.shape, job.engine) if job.shape else load_model(job.engine)
        self._job = job
        self._engine, self._preparer = open_bench_engine(network, job.engine)
        self._open_s = time.monotonic() - started_s
        self._rows = job.workload.rows(lambda text: len(network.text_tokenizer.encode(text)))
        # Other texts and voices warm up what must stay cold.
        others = replace(job.workload, num_rows=min(job.workload.num_rows, 64), num_references=8, seed=1)
        self._warm_up = self.measure(others.rows(len) if job.cold else self._rows)

    def describe(self) -> dict[str, Any]:
        from tts_batch.bench.table import describe_machine

        return {
            "machine": describe_machine(),
            "engine": dict(self._engine.info),
            "open_s": self._open_s,
            "warm_up_s": self._warm_up.wall_s,
        }

    def prepare(self, index: int, count: int) -> list[BenchRow]:
        """The rows of a pass: a share of all. After it, only the pass itself is left to do."""
        if self._job.cold:
            self._preparer.forget_references()
        return share(self._rows, index, count)

    def measure(self, rows: Sequence[BenchRow]) -> Measurement:
        from tts_batch.bench.measure import measure

        return measure(self._engine, self._preparer, rows, self._job.at_once)

    def close(self) -> None:
        self._engine.close()


def main() -> int:
    logging.basicConfig(format=f"replica {sys.argv[2]}: %(message)s")
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    try:
        _serve(channel, channel.receive())
    except EngineError as error:
        channel.send({"type": "failed", "error": str(error)})
        return 1
    return 0


def _serve(channel: Channel, messages: Iterator[Message]) -> None:
    job = next(messages, None)
    if job is None:
        return
    replica = Replica(ReplicaJob.from_message(job))
    channel.send({"type": "ready", **replica.describe()})
    for message in messages:
        rows = replica.prepare(message["index"], message["count"])
        channel.send({"type": "armed"})
        if next(messages, None) is None:
            break
        channel.send({"type": "measured", **replica.measure(rows).as_dict()})
    replica.close()


if __name__ == "__main__":
    sys.exit(main())
