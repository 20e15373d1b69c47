"""What a replica is told, and which of the rows are its own."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from tts_batch.bench.replica import ReplicaJob, share
from tts_batch.bench.workload import Workload
from tts_batch.engine.request import EngineConfig


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_shares_are_all_rows_once_in_order_and_of_like_cost(count: int) -> None:
    rows = Workload("seed-tts", 1_001, 5).rows(len)
    shares = [share(rows, index, count) for index in range(count)]
    places = {id(row): place for place, row in enumerate(rows)}
    for part in shares:
        assert [places[id(row)] for row in part] == sorted(places[id(row)] for row in part)
    assert sorted(places[id(row)] for part in shares for row in part) == list(range(1_001))
    frames = [sum(row.num_frames for row in part) for part in shares]
    assert max(frames) - min(frames) <= 200  # of some 6,000 and more
    assert share(rows, 0, 1) == rows


def test_a_job_survives_the_socket() -> None:
    config = EngineConfig(model="folder", placement="split", code2wav_device="cpu", options={"kv_share": "0.5"})
    job = ReplicaJob(None, config, Workload("fixed", 3, 1, True), cold=True, at_once=7)
    assert ReplicaJob.from_message(json.loads(json.dumps(asdict(job)))) == job
