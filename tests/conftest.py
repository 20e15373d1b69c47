"""Severity for every test: one thread each, no network, a cache of its own, and in CI no test may be skipped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch loads; programs that tests start inherit it
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
from hypothesis import settings

# A busy machine is no failure: `timeout` in pyproject.toml ends what hangs.
settings.register_profile("patient", parent=settings.default, deadline=None)
settings.load_profile("patient")

GPU_TESTS = Path(__file__).parent / "gpu"


def pytest_configure(config: pytest.Config) -> None:
    """Build tiny checkpoints once a session, away from the user's cache, for all xdist workers together."""
    if "TTS_BATCH_CACHE" not in os.environ:
        import tempfile

        folder = tempfile.TemporaryDirectory(prefix="tts-batch-test-cache-", ignore_cleanup_errors=True)
        config.add_cleanup(folder.cleanup)
        os.environ["TTS_BATCH_CACHE"] = folder.name  # xdist workers inherit it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests under tests/gpu need a CUDA device."""
    gpu_tests = [item for item in items if item.path.is_relative_to(GPU_TESTS)]
    if gpu_tests:
        import torch

        if not torch.cuda.is_available():
            for item in gpu_tests:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a skipped test is a failed one: a check that quietly stopped running proves nothing."""
    report = yield
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail") and not _needs_gpu(item):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole module that skips itself."""
    report = yield
    if os.environ.get("CI") and report.skipped and not _needs_gpu(collector):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


def _needs_gpu(node: pytest.Item | pytest.Collector) -> bool:
    return node.path.is_relative_to(GPU_TESTS)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    """Return a function that sets the fake engine for runs of this test, through the environment as workers read it."""
    monkeypatch.chdir(Path(__file__).parents[1])  # so that workers find tests.fake_engine
    path = [str(Path(__file__).parent / "fakes"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))  # so that clip processes find sitecustomize

    def set_fake(**settings: Any) -> None:
        monkeypatch.setenv("FAKE_ENGINE", json.dumps({"state": str(tmp_path), **settings}))

    set_fake()
    return set_fake


@pytest.fixture(scope="session")
def _s3_server() -> Generator[tuple[str, Any]]:
    from tests.s3_server import serve_s3

    with serve_s3() as server:
        yield server


@pytest.fixture
def s3(_s3_server: tuple[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Generator[Any]:
    """The URL of an empty bucket of a real S3 server, and the server's `faults`; programs that tests start find it."""
    import s3fs

    endpoint, faults = _s3_server
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "not-to-be-seen",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    files = s3fs.S3FileSystem(use_listings_cache=False)
    bucket = f"bucket-{tmp_path.name.lower().replace('_', '-')}"[:60].rstrip("-")
    files.mkdir(bucket)
    yield SimpleNamespace(url=f"s3://{bucket}", files=files, faults=faults)
    faults.share, faults.away = 0.0, False
