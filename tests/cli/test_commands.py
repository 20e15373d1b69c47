"""The commands from end to end on the tiny model: what they print where, and how they end."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tts_batch.cli.main import main
from tts_batch.errors import ExitStatus
from tts_batch.model.tiny import build_tiny

Output = pytest.CaptureFixture[str]
GOOD = "id,text,speaker\none,Hello.,ryan\n"
MIXED = GOOD + "two,,ryan\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text(GOOD)
    return path


def read_json(capsys: Output) -> Any:
    return json.loads(capsys.readouterr().out)


# synth, status


def test_synth_resumes_and_status_shows_it(table: Path, tmp_path: Path, capsys: Output) -> None:
    command = [
        "synth",
        str(table),
        "--out",
        str(tmp_path / "out"),
        "--model",
        "tiny",
        "--progress",
        "none",
        "--json",
    ]
    last_line = f"{tmp_path / 'out'}: 1 of 1 rows ok, "
    for made in (1, 0):
        assert main(command) == ExitStatus.OK
        captured = capsys.readouterr()
        summary = json.loads(captured.out)
        assert (summary["rows"], summary["ok"], summary["made"], summary["exit_status"]) == (1, 1, made, 0)
        assert captured.err.startswith(last_line)
        assert captured.err.count("\n") == 1

    assert main(["status", str(tmp_path / "out"), "--json"]) == ExitStatus.OK
    assert read_json(capsys).items() >= {"state": "finished", "rows": 1, "ok": 1, "failed": 0, "pending": 0}.items()
    assert main(["status", str(tmp_path / "out")]) == ExitStatus.OK
    assert "finished" in capsys.readouterr().out


def test_synth_writes_nothing_to_stdout_and_returns_3_when_rows_fail(
    table: Path, tmp_path: Path, capsys: Output
) -> None:
    table.write_text(MIXED)
    out = tmp_path / "out"
    assert main(["synth", str(table), "--out", str(out), "--model", "tiny"]) == ExitStatus.SOME_FAILED
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "failed=1" in captured.err
    assert "1 of 2 rows ok" in captured.err
    assert pq.read_table(out / "failures.parquet")["reason"].to_pylist() == ["empty_text"]


def test_status_of_no_run_is_usage(tmp_path: Path, capsys: Output) -> None:
    assert main(["status", str(tmp_path)]) == ExitStatus.USAGE
    assert "not a run folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--top-p", "2"], "'top_p' cannot be 2.0"),
        (["--launcher", "ray", "--gpus", "0"], "--gpus"),
        (["--engine", "vllm", "--save-codes"], "--engine vllm returns no codes"),
        (["--engine-option", "frames_per_visit"], "use NAME=VALUE"),
        (["--shard", "3/2"], "--shard 3/2"),
        (["--check", "loudness=3"], "'loudness' does not exist"),
        (["--language", "klingon"], "klingon"),
        (["--map", "text=nowhere"], "no column 'nowhere'"),
    ],
)
def test_what_cannot_be_used_is_2(args: list[str], words: str, table: Path, tmp_path: Path, capsys: Output) -> None:
    command = ["synth", str(table), "--out", str(tmp_path / "out"), "--model", "tiny-random"]
    assert main([*command, *args]) == ExitStatus.USAGE
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_no_table_and_no_out_are_named(capsys: Output) -> None:
    assert main(["synth"]) == ExitStatus.USAGE
    message = capsys.readouterr().err
    assert "'data' is missing: name one TABLE" in message
    assert "'out' is missing: name the run folder with --out DIR" in message


def test_a_model_that_is_unavailable_is_5(table: Path, tmp_path: Path, capsys: Output) -> None:
    """Offline, without --model: the checkpoint that would fit is named, and what else there is."""
    assert main(["synth", str(table), "--out", str(tmp_path / "out")]) == ExitStatus.CANNOT_CONTINUE
    message = capsys.readouterr().err
    assert "Qwen3-TTS-12Hz-1.7B-CustomVoice" in message
    assert "'tiny'" in message
    assert not (tmp_path / "out").exists()


# plan


def test_plan_checks_and_estimates(table: Path, tmp_path: Path, capsys: Output) -> None:
    assert main(["plan", str(table), "--model", "tiny-random"]) == ExitStatus.OK
    assert capsys.readouterr().out.startswith("1 rows: 1 to make, 0 would fail\n  tiny-random (custom_voice): 1 rows")
    table.write_text(MIXED)
    assert main(["plan", str(table), "--model", "tiny-random", "--json"]) == ExitStatus.SOME_FAILED
    assert read_json(capsys)["failures"] == {"empty_text": 1}
    assert main(["plan", str(table), "--model", "tiny-random"]) == ExitStatus.SOME_FAILED
    assert "rows.csv:3" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.csv"]  # nothing is written


def test_plan_estimates_a_run_and_names_the_measurements_behind_it(tmp_path: Path, capsys: Output) -> None:
    checkpoint = tmp_path / "as-wide-as-the-released"
    shutil.copytree(build_tiny("tiny-random", "custom_voice"), checkpoint)
    config = json.loads((checkpoint / "config.json").read_text())
    config["talker_config"]["hidden_size"] = 2048
    (checkpoint / "config.json").write_text(json.dumps(config))
    table = tmp_path / "rows.csv"
    table.write_text("text,speaker\n" + "A sentence that is repeated.,ryan\n" * 500)
    assert main(["plan", str(table), "--model", str(checkpoint), "--deep"]) == ExitStatus.OK
    shown = capsys.readouterr().out
    assert re.search(r"500 rows, about \S+ min of speech, at most \S+ (min|h) by their budgets", shown)
    assert re.search(r"about \S+ s on one H200, shared by all GPUs of the run .*benchmarks/log\.md", shown)
    assert re.search(r"memory of each GPU: \S+ GB of weights and \S+ MB of KV cache", shown)
    assert "about 2 of them will reach their budget without an end" in shown
    assert main(["plan", str(table), "--model", str(checkpoint), "--json"]) == ExitStatus.OK
    (group,) = read_json(capsys)["models"]
    assert group["gpu_hours"] > 0 and group["measured"]["card"] == "H200"


# voices


def test_voices_are_those_of_the_checkpoint(capsys: Output) -> None:
    assert main(["voices", "--json"]) == ExitStatus.OK
    released = read_json(capsys)
    assert main(["voices", "--json", "--model", "tiny-random"]) == ExitStatus.OK
    tiny = read_json(capsys)
    by_name = {speaker["name"]: speaker for speaker in released["speakers"]}
    assert by_name == {speaker["name"]: speaker for speaker in tiny["speakers"]}
    assert by_name["eric"] == {"name": "eric", "language": "chinese", "dialect": "sichuan_dialect"}
    assert all(speaker["language"] in released["languages"] for speaker in released["speakers"])
    assert sorted(released["languages"]) == sorted(tiny["languages"])


def test_the_trained_voices_speak_english(capsys: Output) -> None:
    assert main(["voices", "--json", "--model", "tiny"]) == ExitStatus.OK
    tiny = read_json(capsys)
    assert tiny["languages"] == ["auto", "english"]
    assert len(tiny["speakers"]) == 9
    assert {speaker["language"] for speaker in tiny["speakers"]} == {"english", None}
    assert {speaker["dialect"] for speaker in tiny["speakers"]} == {None}


def test_voices_for_people(capsys: Output) -> None:
    assert main(["voices"]) == ExitStatus.OK
    assert "ono_anna     japanese\n" in capsys.readouterr().out
