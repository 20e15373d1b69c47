"""doctor finds what would stop a run, and ends with 3 for it."""

from __future__ import annotations

import json
import shutil
from importlib import metadata
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tts_batch.cli.main import main
from tts_batch.errors import ExitStatus
from tts_batch.model.tiny import build_tiny

Output = pytest.CaptureFixture[str]


def findings(capsys: Output) -> dict[str, tuple[str, str]]:
    return {found["subject"]: (found["level"], found["detail"]) for found in json.loads(capsys.readouterr().out)}


def test_a_healthy_machine(capsys: Output) -> None:
    assert main(["doctor", "--json"]) == ExitStatus.OK
    found = findings(capsys)
    assert found["torch"] == ("ok", f"{torch.__version__}, wanted: <2.15,>=2.11")
    assert {"python", "numpy", "libsndfile", "ffmpeg", "cache", "hub cache"} <= found.keys()
    assert found["hub"][0] == "note"  # the tests run offline


def test_a_package_that_is_too_old_is_a_problem(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    installed = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.1" if name == "click" else installed(name))
    assert main(["doctor"]) == ExitStatus.SOME_FAILED
    assert "problem  click            0.1, wanted: >=8.1" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["custom_voice", "base", "voice_design"])
def test_a_good_checkpoint_speaks(kind: str, capsys: Output) -> None:
    assert main(["doctor", "--json", "--device", "cpu", "--model", str(build_tiny("tiny", kind))]) == ExitStatus.OK
    found = findings(capsys)
    assert kind in found["checkpoint"][1]
    assert {found[subject][0] for subject in ("checkpoint", "tokenizer", "weights", "clip")} == {"ok"}


def test_a_missing_tensor_is_named(tmp_path: Path, capsys: Output) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(build_tiny("tiny-random", "custom_voice"), folder)
    tensors = load_file(folder / "model.safetensors")
    name = sorted(tensors)[0]
    del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    assert main(["doctor", "--json", "--device", "cpu", "--model", str(folder)]) == ExitStatus.SOME_FAILED
    level, detail = findings(capsys)["weights"]
    assert level == "problem"
    assert name in detail


def test_a_checkpoint_that_is_none_is_5(tmp_path: Path, capsys: Output) -> None:
    assert main(["doctor", "--model", str(tmp_path)]) == ExitStatus.CANNOT_CONTINUE
    assert "lacks config.json" in capsys.readouterr().err


def test_comparing_needs_a_model(capsys: Output) -> None:
    assert main(["doctor", "--compare-official"]) == ExitStatus.USAGE
    assert "--model" in capsys.readouterr().err


def test_comparing_without_the_official_package_says_where_to_put_it(capsys: Output) -> None:
    args = ["doctor", "--json", "--device", "cpu", "--model", "tiny-random", "--compare-official"]
    assert main([*args, "--official-python", "/no/such/python"]) == ExitStatus.SOME_FAILED
    level, detail = findings(capsys)["official"]
    assert level == "problem"
    assert "/no/such/python could not run the qwen_tts package" in detail
