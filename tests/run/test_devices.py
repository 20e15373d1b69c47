"""One worker for each device token, whatever its form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tts_batch.config import JobConfig
from tts_batch.errors import UsageError
from tts_batch.run.devices import Device, find_devices


def config(**options: Any) -> JobConfig:
    return JobConfig.model_validate({"data": ("t.csv",), "out": Path("out"), **options})


def tokens(devices: list[Device]) -> list[str]:
    return [value for device in devices for value in device.environment.values()]


def test_the_cpu_is_one_worker() -> None:
    assert find_devices(config(device="cpu")) == [Device("cpu")]


def test_tokens_are_passed_on_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-8b2c,MIG-1/2/0")
    assert tokens(find_devices(config(device="cuda"))) == ["3", "GPU-8b2c", "MIG-1/2/0"]
    assert tokens(find_devices(config(device="cuda", gpus=(2, 0)))) == ["MIG-1/2/0", "3"]


def test_split_placement_takes_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert tokens(find_devices(config(device="cuda", placement="split"))) == ["0,1", "2,3"]
    with pytest.raises(UsageError, match="pairs"):
        find_devices(config(device="cuda", placement="split", gpus=(0, 1, 2)))


@pytest.mark.parametrize("gpus", [(3,), (-1,), (0, 0)])
def test_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch, gpus: tuple[int, ...]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    with pytest.raises(UsageError, match="from 0 to 2"):
        find_devices(config(device="cuda", gpus=gpus))


def test_gpus_on_a_cpu_and_an_empty_list_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="uses the CPU"):
        find_devices(config(device="cpu", gpus=(0,)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UsageError, match="is empty"):
        find_devices(config(device="cuda"))


def test_torch_is_asked_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_devices(config(device="auto")) == [Device("cpu")]
