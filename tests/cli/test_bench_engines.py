"""`bench` of two engines on the same rows; vLLM-Omni is the scripted one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.run.support import ROOT
from tts_batch.cli.main import main
from tts_batch.errors import ExitStatus

SITE = ROOT / "tests" / "fakes" / "vllm_site"


def test_both_are_measured_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(SITE))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SITE), str(ROOT)]))
    report = tmp_path / "report.json"
    command = ["bench", "--engine", "vllm", "--engine", "native", "--model", "tiny-random", "--workload", "fixed"]
    assert main([*command, "--rows", "2", "--json", str(report)]) == ExitStatus.OK
    measured = json.loads(report.read_text())
    assert {name: one["rounds"][0]["completed"] for name, one in measured.items()} == {"vllm": 2, "native": 2}
    assert measured["vllm"]["engine"]["vllm_omni"] == "0.30.0"
    assert measured["vllm"]["workload"] == measured["native"]["workload"]
    assert "vllm makes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--engine", "vllm", "--cache", "cold"], "--cache cold is for engine native alone"),
        (["--engine-option", "async_chunk"], "use --engine-option NAME=VALUE"),
    ],
)
def test_what_cannot_be_measured_is_said(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--model", "tiny-random", *arguments]) == ExitStatus.USAGE
    assert words in capsys.readouterr().err
