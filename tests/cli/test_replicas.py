"""`tts-batch bench --gpus` from end to end in processes on a CPU, and the ways in which it cannot be asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tts_batch.cli.main import main
from tts_batch.errors import ExitStatus

SMALL = [
    "bench",
    "--model",
    "tiny-random",
    "--device",
    "cpu",
    "--workload",
    "fixed",
    "--rows",
    "2",
    "--references",
    "1",
]


def test_one_alone_two_together_and_a_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    more = ["--runner", "v2", "--gpus", "2", "--placement", "split", "--cache", "cold", "--json", str(path)]
    assert main([*SMALL, *more]) == ExitStatus.OK
    report = json.loads(path.read_text())
    settings = {found["name"]: found for found in report["settings"]}
    assert list(settings) == ["one alone", "one alone, its share", "2 colocated", "1 split"]
    rows = {name: [each["attempted"] for each in found["rounds"][0]["replicas"]] for name, found in settings.items()}
    assert rows == {"one alone": [2], "one alone, its share": [1], "2 colocated": [1, 1], "1 split": [2]}
    for found in settings.values():
        (measured,) = found["rounds"]
        assert measured["completed"] == measured["attempted"]
        assert measured["audio_s"] == pytest.approx(measured["completed"] * 52 / 12.5)
        assert found["speed_up"] == pytest.approx(found["audio_s_per_s"] / settings["one alone"]["audio_s_per_s"])
        assert found["efficiency"] == pytest.approx(found["speed_up"] / found["num_devices"])
    captured = capsys.readouterr()
    assert [name for name in settings if f"\n{name} " in captured.out] == list(settings)
    assert captured.out.startswith("machine ")


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (["--gpus", "0"], 2, "neither 'all' nor a number from 1 on"),
        (["--gpus", "some"], 2, "neither 'all' nor a number from 1 on"),
        (["--gpus", "3"], 2, "--rows 2 leaves some of 3 replicas without a row"),
        (["--gpus", "1", "--placement", "split"], 2, "1 cannot be paired"),
        (["--budget-s", "9"], 2, "--budget-s goes with --gpus"),
        (["--placement", "split"], 5, "needs two devices, and torch sees 1"),
        (["--gpus", "2", "--budget-s", "1"], 5, "The time was over before these replicas were ready: 0, 1"),
        (["--gpus", "1", "--max-num-seqs", "1", "--dtype", "float16"], 5, "Replica 0: dtype 'float16'"),
    ],
)
def test_what_cannot_be_measured(args: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, *args]) == status
    captured = capsys.readouterr()
    assert words in captured.err
    assert (captured.out, "Traceback" in captured.err) == ("", False)
