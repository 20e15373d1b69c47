"""Readers that leave and streams that are closed: data end with the status of SIGPIPE, messages are dropped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tts_batch.cli.streams import NO_READER
from tts_batch.errors import ExitStatus

COMMAND = [sys.executable, "-m", "tts_batch"]


def run_unread(stream: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the command with `stream` on a pipe whose reader has left already."""
    read, write = os.pipe()
    os.close(read)
    try:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: write}
        return subprocess.run([*COMMAND, *args], **streams, text=True, timeout=120)
    finally:
        os.close(write)


@pytest.mark.parametrize("args", [["--help"], ["synth", "--help"], ["voices", "--json"]])
def test_data_without_a_reader_end_the_command(args: list[str]) -> None:
    done = run_unread("stdout", *args)
    assert (done.returncode, done.stderr) == (NO_READER, "")


def test_a_reader_that_leaves_in_between() -> None:
    code = (
        "import sys, click; from tts_batch.__main__ import main; from tts_batch.cli.main import cli\n"
        "def flood():\n"
        "    while True: click.echo('a line of many')\n"
        "cli.add_command(click.Command('flood', callback=flood))\n"
        "sys.argv = ['tts-batch', 'flood']\n"
        "sys.exit(main())"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"a line of many\n"
        process.stdout.close()
        assert process.wait(timeout=60) == NO_READER
        assert process.stderr.read() == b""


@pytest.mark.parametrize("args", [["status", "no-such-run"], ["synth", "--no-such-option"]])
def test_messages_without_a_reader_are_dropped(args: list[str]) -> None:
    done = run_unread("stderr", *args)
    assert (done.returncode, done.stdout) == (ExitStatus.USAGE, "")


@pytest.mark.parametrize("stream", ["stderr", "stdout"])
def test_a_run_without_a_reader_ends_as_it_would(stream: str, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("id,text,speaker\none,Hello.,ryan\n")
    done = run_unread(stream, "synth", str(table), "--out", str(tmp_path / "out"), "--model", "tiny", "--json")
    assert done.returncode == ExitStatus.OK
    assert (tmp_path / "out" / "manifest.parquet").exists()


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_from_the_start(closed: str, tmp_path: Path) -> None:
    """A file that is opened later must not take the number of a stream: messages would be written into it."""
    script = f'"$0" -m tts_batch voices --json {closed}; echo $? > status'
    subprocess.run(["sh", "-c", script, sys.executable], cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.getcwd()},
                   capture_output=True, timeout=60)  # fmt: skip
    assert (tmp_path / "status").read_text() == "0\n"


def test_a_broken_pipe_of_another_kind_is_a_bug() -> None:
    code = (
        "import sys, click; from tts_batch.cli import main as cli\n"
        "def broken(): raise BrokenPipeError(32, 'of a worker')\n"
        "cli.cli.add_command(click.Command('probe', callback=broken))\n"
        "sys.exit(cli.main(['probe']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == ExitStatus.BUG
    assert "of a worker" in done.stderr
