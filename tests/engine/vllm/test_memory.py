"""B27: two shares of the whole memory are compared with what is free, before anything starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tts_batch.engine.errors import EngineConfigError
from tts_batch.engine.request import EngineConfig
from tts_batch.engine.vllm.memory import check_memory
from tts_batch.engine.vllm.settings import resolve_settings


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have nvidia-smi print the file of a card, named by its number or UUID: total and free MiB."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f'#!/bin/sh\ncat "{tmp_path}/$2"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def check(**settings: Any) -> None:
    check_memory(resolve_settings(EngineConfig(model="", device="cuda", **settings)))


def test_a_shared_card_is_refused_with_a_share_that_fits(cards: Path) -> None:
    (cards / "0").write_text("40960, 24576\n")
    check()
    (cards / "0").write_text("40960, 20480\n")
    with pytest.raises(EngineConfigError) as caught:
        check()
    assert str(caught.value) == (
        "engine vllm: GPU 0 has 20.0 of 40.0 GiB free, and 0.3 and 0.3 of the whole for its 2 stages are 24.0 GiB: "
        "--engine-option gpu_memory_utilization=0.24 would fit."
    )
    check(options={"gpu_memory_utilization": "0.24"})


def test_a_full_card_is_refused_with_what_to_do(cards: Path) -> None:
    (cards / "0").write_text("40960, 2048\n")
    with pytest.raises(EngineConfigError, match="end what else uses it, or choose another with --gpus"):
        check()


def test_the_card_is_the_visible_one_and_with_split_two(cards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cards / "3").write_text("40960, 40960\n")
    (cards / "GPU-5f").write_text("40960, 8192\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5f")
    check()
    with pytest.raises(EngineConfigError, match=r"GPU GPU-5f has 8.0 of 40.0 GiB free, and 0.3 of the whole for its 1"):
        check(placement="split")


@pytest.mark.parametrize("answer", ["", "[N/A], [N/A]\n"])
def test_without_an_answer_nothing_is_refused(cards: Path, answer: str, caplog: pytest.LogCaptureFixture) -> None:
    (cards / "0").write_text(answer)
    check()
    assert "the memory of GPU 0 is not known" in caplog.text
