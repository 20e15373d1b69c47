"""Runs on a real Ray cluster of this machine: raylets as processes, a worker and nodes that die, a driver killed."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.run.support import ROOT, journalled, kill, make_config, make_rows, snapshot, start_job, wait_until
from tts_batch.config import JobConfig

ray = pytest.importorskip("ray")

FAULTS = {"row-7": "silent", "row-11": "error"}


@pytest.fixture(scope="module")
def cluster() -> Generator[Any]:
    """A head without room for workers; tests add nodes."""
    from ray.cluster_utils import Cluster

    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "FAKE_ENGINE")}
    os.environ |= {"PYTHONPATH": path, "FAKE_ENGINE": json.dumps({"faults": FAULTS, "row_s": 0.12})}
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_health_check_period_ms": "500"}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        yield made
    finally:
        made.shutdown()
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@pytest.fixture
def nodes(cluster: Any) -> Generator[Callable[[], Any]]:
    """Return a function that adds a node with room for one worker; all are gone after the test."""
    added = []

    def add() -> Any:
        added.append(cluster.add_node(num_cpus=1))
        return added[-1]

    yield add
    for node in added:
        if node in cluster.worker_nodes:
            cluster.remove_node(node, allow_graceful=False)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, ...]]:
    """The same table by the local pool."""
    folder = tmp_path_factory.mktemp("local")
    config = make_config(folder, make_rows(90))
    run = start_job(config, faults=FAULTS)
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 3, output
    return snapshot(config.out)


def ray_config(folder: Path, cluster: Any) -> JobConfig:
    return make_config(folder, make_rows(90), launcher="ray", ray_address=cluster.address)


def workers(name: bytes = b"ray::WorkerActor") -> list[int]:
    """The processes of actors, which Ray names after what they do."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                command = (process / "cmdline").read_bytes()
            except OSError:
                continue
            if command.startswith(name):
                found.append(int(process.name))
    return found


def assert_as_local(config: JobConfig, expected: dict[str, tuple[Any, ...]]) -> None:
    assert snapshot(config.out) == expected
    assert set(journalled(config.out).values()) == {1}, "no row was made twice"
    wait_until(lambda: not workers())


def test_a_worker_and_a_node_die_and_another_joins(
    tmp_path: Path, cluster: Any, nodes: Callable[[], Any], expected: dict[str, tuple[Any, ...]]
) -> None:
    nodes()
    second = nodes()
    config = ray_config(tmp_path, cluster)
    run = start_job(config)
    wait_until(lambda: segments(config) >= 2 and sum(journalled(config.out).values()) > 4)
    kill(workers()[0])
    recorded = sum(journalled(config.out).values())
    wait_until(lambda: sum(journalled(config.out).values()) > recorded + 4)
    cluster.remove_node(second, allow_graceful=False)
    third_joined = segments(config)
    nodes()
    wait_until(lambda: segments(config) > third_joined or run.poll() is not None)
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 3, output
    assert segments(config) > third_joined, "the node that joined was used"
    assert_as_local(config, expected)


def segments(config: JobConfig) -> int:
    return len(list(config.out.glob("journal/w*/*.jsonl")))


def test_the_driver_is_killed_and_the_same_command_resumes(
    tmp_path: Path, cluster: Any, nodes: Callable[[], Any], expected: dict[str, tuple[Any, ...]]
) -> None:
    nodes()
    config = ray_config(tmp_path, cluster)
    run = start_job(config)
    wait_until(lambda: sum(journalled(config.out).values()) > 4)
    kill(run.pid)
    run.communicate()
    wait_until(lambda: not workers())
    made = sum(journalled(config.out).values())
    again = start_job(config)
    wait_until(lambda: sum(journalled(config.out).values()) > made + 4)
    again.send_signal(signal.SIGTERM)
    output, _ = again.communicate(timeout=60)
    assert again.returncode == 4, output
    wait_until(lambda: not workers())
    last = start_job(config)
    output, _ = last.communicate(timeout=120)
    assert last.returncode == 3, output
    assert_as_local(config, expected)


BATCHES = """
import sys, ray
from tts_batch.ray import TtsBatch
ray.init(address=sys.argv[1], log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False
rows = [{"id": f"row-{n}", "text": f"Sentence number {n}.", "speaker": "vivian", "n": n} for n in range(24)]
options = {"model": "tiny-random", "engine": "tests.fake_engine:create", "device": "cpu"}
made = ray.data.from_items(rows).map_batches(
    TtsBatch, fn_constructor_kwargs=options, concurrency=1, num_cpus=1, batch_size=8
).take_all()
print([(row["id"], row["n"], row["audio"][:4], row["reason"]) for row in made if row["n"] in (6, 7, 8)])
"""


def test_ray_data_makes_batches(cluster: Any, nodes: Callable[[], Any]) -> None:
    nodes()
    command = [sys.executable, "-c", BATCHES, cluster.address]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    wanted = [("row-6", 6, b"RIFF", ""), ("row-7", 7, b"", "silent_output"), ("row-8", 8, b"RIFF", "")]
    assert sorted(ast.literal_eval(done.stdout.splitlines()[-1])) == wanted  # Ray gives blocks back in any order
