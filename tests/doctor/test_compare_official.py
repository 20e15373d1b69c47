"""doctor --compare-official, with the official package's recorded outputs in the place of its interpreter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden.cases import DOCTOR_FRAMES
from tests.golden.official import GOLDEN, read
from tts_batch.doctor import Finding
from tts_batch.doctor.compare_official import check_parity
from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.tiny import build_tiny

Compare = Callable[..., list[Finding]]


def script(path: Path, lines: str) -> str:
    """An executable that stands for an interpreter; it is called with "-", the job and where the answers go."""
    path.write_text(f"#!/bin/sh\n{lines}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    def compare_with(answers: dict[str, Any] | None = None, dtype: str = "float32") -> list[Finding]:
        """The findings of the three clips, after that of the package, with the recorded answers or with others."""
        recorded = GOLDEN / "compare_official.npz"
        if answers is not None:
            recorded = tmp_path / "answers.npz"
            np.savez(recorded, **answers)
        python = script(tmp_path / "python", f'cp "$2" {tmp_path}/job.json\ncp {recorded} "$3"')
        checkpoint = resolve_checkpoint(str(build_tiny("tiny-random", "custom_voice")))
        return list(check_parity(checkpoint, "cpu", dtype, python, DOCTOR_FRAMES))

    return compare_with


def altered(**arrays: np.ndarray) -> dict[str, np.ndarray]:
    return read("compare_official") | arrays


def levels(findings: list[Finding]) -> list[str]:
    return [finding.level for finding in findings]


def test_this_engine_generates_what_the_package_generated(compare: Compare, tmp_path: Path) -> None:
    official, *clips = compare()
    assert (official.level, official.subject) == ("ok", "official")
    assert "qwen-tts 0.1.1" in official.detail
    assert [(found.level, found.subject) for found in clips] == [("ok", "parity")] * 3
    assert all(f"all {DOCTOR_FRAMES} frames are the same" in found.detail for found in clips)

    job = json.loads((tmp_path / "job.json").read_text(encoding="utf-8"))
    assert job["model"] == str(build_tiny("tiny-random", "custom_voice"))
    assert {call["fn"] for call in job["calls"]} == {"generate_custom_voice"}
    for call in job["calls"]:
        assert not call["kwargs"]["do_sample"]
        assert not call["kwargs"]["subtalker_dosample"]
        assert call["kwargs"]["max_new_tokens"] == DOCTOR_FRAMES + 1


@pytest.mark.parametrize(("margin", "ok"), [(1.0, False), (2e-3, False), (5e-4, True)])
def test_another_code_is_forgiven_at_a_near_tie_only(compare: Compare, margin: float, ok: bool) -> None:
    codes, margins = read("compare_official")["codes_1"].copy(), read("compare_official")["margin_1"].copy()
    codes[9, 4] ^= 1
    margins[9] = margin
    findings = compare(altered(codes_1=codes, margin_1=margins))
    assert levels(findings) == ["ok", "ok", "ok" if ok else "problem", "ok"]
    assert "9 of 16 frames are the same" in findings[2].detail


def test_an_eos_that_came_early_is_another_code(compare: Compare) -> None:
    codes, margins = read("compare_official")["codes_0"][:5], np.ones(6, np.float32)
    clip = compare(altered(codes_0=codes, margin_0=margins))[1]
    assert (clip.level, "5 of 5 frames are the same" in clip.detail) == ("problem", True)


def test_waves_must_agree_too(compare: Compare) -> None:
    wave = read("compare_official")["wave_2"]
    assert "problem" in levels(compare(altered(wave_2=wave * 1.01)))
    shorter = compare(altered(wave_2=wave[:-5]))[3]
    assert (shorter.level, "different lengths" in shorter.detail) == ("problem", True)
    # After a reference the official cut may leave one sample of it.
    assert levels(compare(altered(wave_2=np.append(np.float32(0.5), wave)))) == ["ok"] * 4


def test_an_environment_without_the_package_is_named(tmp_path: Path) -> None:
    python = script(tmp_path / "python", "echo \"ModuleNotFoundError: No module named 'qwen_tts'\" >&2; exit 1")
    checkpoint = resolve_checkpoint(str(build_tiny("tiny-random", "base")))
    (found,) = check_parity(checkpoint, "cpu", "float32", python)
    assert (found.level, found.subject) == ("problem", "official")
    assert "No module named 'qwen_tts'" in found.detail and "--official-python" in found.detail
