"""The command's frame: it starts fast, and every ending has its exit status."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from tts_batch.cli import main as cli_main
from tts_batch.errors import CannotContinueError, ExitStatus, RowError, UsageError

HEAVY = {
    "torch",
    "transformers",
    "pydantic",
    "pyarrow",
    "librosa",
    "numpy",
    "soundfile",
    "yaml",
    "ray",
    "huggingface_hub",
}


@pytest.mark.parametrize("args", [["--help"], ["synth", "--help"], ["--version"], ["doctor", "--help"]])
def test_help_loads_nothing_heavy(args: list[str]) -> None:
    code = (
        "import sys; from tts_batch.cli.main import main; status = main(sys.argv[1:]);"
        f"print('loaded:', *sorted({HEAVY!r} & set(sys.modules))); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "tts_batch", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("tts-batch, version ")


@pytest.mark.parametrize(
    "args", [["synt"], ["synth", "--no-such-option"], ["synth", "--device", "gpu"], ["status"], []]
)
def test_wrong_usage_is_2(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli_main.main(args) == ExitStatus.USAGE
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("no"), 2),
        (RowError("bad_text", "no"), 3),
        (CannotContinueError("no"), 5),
        (KeyboardInterrupt(), 130),
        (click.FileError("x", "no"), 2),
        (ZeroDivisionError("no"), 1),
    ],
)
def test_what_a_command_raises_becomes_its_status(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command("probe")
    def probe() -> None:
        raise error

    monkeypatch.setitem(cli_main.cli.commands, "probe", probe)
    assert cli_main.main(["probe"]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert ("Traceback" in captured.err) == (status == ExitStatus.BUG)
