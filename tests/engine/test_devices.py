"""The numbers that an engine computes in: what the device has in hardware, unless configured."""

from __future__ import annotations

import pytest
import torch

from tts_batch.engine.devices import resolve_platform
from tts_batch.engine.request import EngineConfig


@pytest.mark.parametrize(
    ("has_bfloat16", "asked", "dtype"),
    [
        (True, "auto", torch.bfloat16),
        (False, "auto", torch.float32),
        (True, "float32", torch.float32),
        (False, "bfloat16", torch.bfloat16),
    ],
)
def test_a_card_without_bfloat16_computes_in_float32_unless_told(
    monkeypatch: pytest.MonkeyPatch, has_bfloat16: bool, asked: str, dtype: torch.dtype
) -> None:
    def is_supported(including_emulation: bool = True) -> bool:
        return has_bfloat16 or including_emulation

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert resolve_platform(EngineConfig(model="", device="cuda", dtype=asked)).dtype == dtype


def test_a_cpu_computes_in_float32() -> None:
    assert resolve_platform(EngineConfig(model="", device="cpu")).dtype == torch.float32


@pytest.mark.parametrize(("capability", "runner"), [((7, 5), "v1"), ((8, 0), "v2"), ((12, 0), "v2")])
def test_cards_without_kernels_take_runner_v1(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], runner: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: capability >= (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert resolve_platform(EngineConfig(model="", device="cuda")).runner == runner
