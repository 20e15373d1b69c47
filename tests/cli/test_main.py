"""The command's frame: it starts fast, and every ending has its exit status."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from tts_batch.cli import main as cli_main
from tts_batch.errors import CannotContinueError, ExitStatus, RowError, UsageError
from tts_batch.ipc.processes import STOP_SIGNALS
from tts_batch.run.signals import SecondInterrupt

HEAVY = {"torch", "transformers", "pyarrow", "librosa", "numpy", "soundfile", "yaml", "ray", "huggingface_hub"}
MAX_HELP_S = 0.3


@pytest.mark.parametrize(
    ("args", "light"),
    [
        (["--help"], {"pydantic"}),
        (["--version"], {"pydantic"}),
        (["doctor", "--help"], {"pydantic"}),
        (["export", "--help"], {"pydantic"}),
        (["synth", "--help"], set()),  # its options are JobConfig's
        (["retry", "--help"], set()),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_help_loads_nothing_heavy(args: list[str], light: set[str]) -> None:
    code = (
        "import sys; from tts_batch.cli.main import main; status = main(sys.argv[1:]);"
        f"print('loaded:', *sorted({HEAVY | light!r} & set(sys.modules))); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_help_is_there_at_once() -> None:
    """The best of some tries, in processor time: other programs share the machine."""
    code = "import time; from tts_batch.cli.main import main; main(['--help']); print(time.process_time())"
    tries = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True) for _ in range(3)]
    assert min(float(done.stdout.splitlines()[-1]) for done in tries) < MAX_HELP_S


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "tts_batch", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("tts-batch, version ")


@pytest.mark.parametrize("module", ["click", "tts_batch.cli.main", "pydantic"])
@pytest.mark.parametrize(("number", "status"), [(number, 4) for number in STOP_SIGNALS])
def test_a_signal_while_modules_load_has_its_status(number: int, status: int, module: str) -> None:
    code = f"""if True:
        import os, runpy, sys
        class Interrupting:
            def find_spec(self, name, path=None, target=None):
                if name == {module!r}:
                    os.kill(os.getpid(), {number})
        sys.meta_path.insert(0, Interrupting())
        sys.argv = ["tts-batch", "plan", "rows.csv"]
        runpy.run_module("tts_batch", run_name="__main__")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == status
    assert "Traceback" not in done.stderr


def test_the_console_command_starts_there_too() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"tts-batch": "tts_batch.__main__:main"}


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
        (KeyboardInterrupt(), 4),
        (SecondInterrupt(), 130),
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
