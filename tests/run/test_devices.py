"""One worker for each device token, whatever its form."""

from __future__ import annotations

import pytest

from tts_batch.errors import UsageError
from tts_batch.run.devices import Device, find_devices


def tokens(devices: list[Device]) -> list[str]:
    return [value for device in devices for value in device.environment.values()]


def test_the_cpu_is_one_worker() -> None:
    assert find_devices("cpu") == [Device("cpu")]


def test_tokens_are_passed_on_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-8b2c,MIG-1/2/0")
    assert tokens(find_devices("cuda")) == ["3", "GPU-8b2c", "MIG-1/2/0"]
    assert tokens(find_devices("cuda", gpus=(2, 0))) == ["MIG-1/2/0", "3"]


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        ("2,0", ["2", "0"]),
        ("0,-1,1", ["0"]),  # what is no device ends the list
        ("0,,1", ["0"]),
        ("1,", ["1"]),
        ("0, 1,x,2", ["0", "1"]),
        ("00,1", ["0", "1"]),
        ("GPU-8b2c-11,GPU-9c", ["GPU-8b2c-11", "GPU-9c"]),
        ("MIG-GPU-8b2c/1/0,MIG-5f,3", ["MIG-GPU-8b2c/1/0", "MIG-5f", "3"]),
    ],
)
def test_the_list_is_read_as_cuda_reads_it(monkeypatch: pytest.MonkeyPatch, visible: str, seen: list[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert tokens(find_devices("cuda")) == seen


@pytest.mark.parametrize(
    ("visible", "words"),
    [
        ("0,0", "is '0,0', which names 0 twice"),
        ("0,1,01", "names 1 twice"),
        ("GPU-8b2c,GPU-8b2c", "names GPU-8b2c twice"),
        ("-1", "is '-1': no such device"),
        (",0", "is ',0': no such device"),
        ("NoDevFiles", "is 'NoDevFiles': no such device"),
    ],
)
def test_a_list_that_shows_no_device_is_refused(monkeypatch: pytest.MonkeyPatch, visible: str, words: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(UsageError, match=words):
        find_devices("cuda")


def test_split_placement_takes_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert tokens(find_devices("cuda", placement="split")) == ["0,1", "2,3"]
    assert tokens(find_devices("cuda", (3, 1), "split")) == ["3,1"]


@pytest.mark.parametrize(
    ("visible", "gpus", "words"),
    [
        ("0,1,2,3", (0, 1, 2), "needs pairs of devices, and 3 cannot"),
        ("0,1,2", None, "needs pairs of devices, and 3 cannot"),
        ("GPU-8b2c", None, "needs pairs of devices, and 1 cannot"),
    ],
)
def test_split_placement_refuses_what_makes_no_pairs(
    monkeypatch: pytest.MonkeyPatch, visible: str, gpus: tuple[int, ...] | None, words: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(UsageError, match=words):
        find_devices("cuda", gpus, "split")


def test_split_placement_needs_gpus() -> None:
    with pytest.raises(UsageError, match="this run uses the CPU"):
        find_devices("cpu", placement="split")


@pytest.mark.parametrize("gpus", [(3,), (-1,), (0, 0)])
def test_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch, gpus: tuple[int, ...]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    with pytest.raises(UsageError, match="from 0 to 2 among the 3 visible devices: 0, 1, 2"):
        find_devices("cuda", gpus=gpus)


def test_gpus_on_a_cpu_and_an_empty_list_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="uses the CPU"):
        find_devices("cpu", gpus=(0,))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UsageError, match="is '': no such device"):
        find_devices("cuda")


def test_torch_is_asked_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert find_devices("auto") == [Device("cpu")]
