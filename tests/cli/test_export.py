"""`tts-batch export`: what it prints where, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.export.support import make_run, misleading_rows
from tests.run.support import ROOT, wait_until
from tts_batch.choices import EXPORT_FORMATS
from tts_batch.cli.main import main
from tts_batch.errors import ExitStatus
from tts_batch.export.job import FORMATS

Output = pytest.CaptureFixture[str]


def test_the_formats_are_those_there_are() -> None:
    assert tuple(FORMATS) == EXPORT_FORMATS


def test_help_names_each_format(capsys: Output) -> None:
    assert main(["export", "--help"]) == ExitStatus.OK
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in EXPORT_FORMATS)


def test_stdout_is_data_and_stderr_is_messages(tmp_path: Path, capsys: Output) -> None:
    run, out = make_run(tmp_path, misleading_rows(12)), tmp_path / "lj"
    capsys.readouterr()
    command = ["export", str(run), "--to", "ljspeech", "--out", str(out)]
    assert main(command) == ExitStatus.SOME_FAILED
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{out}: 11 of 12 rows, " in captured.err and "Left out: 1 empty_text." in captured.err
    assert "Texts with a '|' or a line break: 1." in captured.err
    assert main([*command, "--json"]) == ExitStatus.SOME_FAILED
    summary = json.loads(capsys.readouterr().out)
    assert (summary["format"], summary["rows"], summary["exported"], summary["left_out"], summary["exit_status"]) == (
        "ljspeech", 12, 11, {"empty_text": 1}, 3
    )  # fmt: skip


def test_options_reach_the_export(tmp_path: Path, capsys: Output) -> None:
    run = make_run(tmp_path, 3)
    command = ["export", str(run), "--out", str(tmp_path / "out"), "--to"]
    assert main([*command, "webdataset", "--shard-mb", "1"]) == ExitStatus.OK
    assert main([*command, "webdataset"]) == ExitStatus.USAGE
    assert "its options differ" in capsys.readouterr().err
    assert main([*command, "nemo", "--overwrite", "--hard-link"]) == ExitStatus.OK
    assert not list((tmp_path / "out").glob("*.tar"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_and_the_same_command_resumes(tmp_path: Path, number: int) -> None:
    run, out = make_run(tmp_path, 60), tmp_path / "wds"
    slow = (  # each clip takes a moment, so that the signal comes while one is read
        "import sys, time; from tts_batch.export.clips import FinishedClip\n"
        "read = FinishedClip.read\n"
        "def slow(clip): time.sleep(0.1); return read(clip)\n"
        "FinishedClip.read = slow\n"
        "from tts_batch.__main__ import main; sys.exit(main())"
    )
    command = ["export", str(run), "--to", "webdataset", "--out", str(out), "--shard-mb", "1"]
    process = subprocess.Popen([sys.executable, "-c", slow, *command], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    wait_until((out / "shard-000000.tar").exists, timeout_s=60)
    process.send_signal(number)
    message = process.communicate(timeout=60)[1]
    assert process.returncode == ExitStatus.STOPPED
    assert message in {"Stopped. Run the same command again to resume.\n", ""}
    assert [path.name for path in out.glob("[!.]*.tar")] == ["shard-000000.tar"]
    assert main(command) == ExitStatus.OK
    assert sorted(path.name for path in out.glob("[!.]*")) == [
        *("README.md", "dataset_info.json", "shard-000000.tar", "shard-000001.tar", "shard-000002.tar")
    ]


@pytest.mark.parametrize("args", [["--to", "zip", "--out", "x"], ["--to", "hf"], ["--out", "x"]])
def test_wrong_usage_is_2(args: list[str], tmp_path: Path) -> None:
    assert main(["export", str(tmp_path), *args]) == ExitStatus.USAGE
