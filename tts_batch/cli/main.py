"""The `tts-batch` command: it dispatches, and turns every way to end into one of the fixed exit statuses."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from tts_batch import __version__
from tts_batch.cli.bench import bench
from tts_batch.cli.doctor import doctor
from tts_batch.cli.export import export
from tts_batch.cli.jobs import finish, plan, retry, status, synth, verify
from tts_batch.cli.streams import NO_READER, drop_stdout, has_reader
from tts_batch.cli.voices import voices
from tts_batch.errors import ExitStatus, TTSBatchError

STDOUT = 1


class _PipeBrokenError(Exception):
    """A BrokenPipeError under another name: click would end the program with status 1 for it."""


class _Commands(click.Group):
    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _renamed():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _renamed():
            return super().invoke(ctx)


@contextmanager
def _renamed() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise _PipeBrokenError from error


@click.group(
    cls=_Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda token: token.replace("_", "-"),  # --top_k is --top-k
        "max_content_width": 100,
    },
)
@click.version_option(__version__, prog_name="tts-batch")
def cli() -> None:
    """A table of texts in, a folder of checked speech clips out.

    Data goes to stdout, messages to stderr. Exit status: 0 all rows ok, 2 usage, 3 some rows failed (plan,
    verify, doctor: findings), 4 stopped (the same command resumes), 5 could not continue, 130 interrupted, 1 a bug,
    141 the reader of stdout left (as after | head).
    """


for command in (synth, plan, status, retry, finish, verify, export, voices, doctor, bench):
    cli.add_command(command)


def main(args: Sequence[str] | None = None) -> int:
    """Run one command (default: `sys.argv`) and return its exit status; no error of a user's raises."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("tts_batch").setLevel(logging.INFO)
    try:
        return int(cli.main(args, prog_name="tts-batch", standalone_mode=False) or ExitStatus.OK)
    except click.Abort as error:  # a run makes an interrupt of its own of the second signal
        return ExitStatus.STOPPED if type(error.__cause__) is KeyboardInterrupt else ExitStatus.INTERRUPTED
    except click.ClickException as error:
        error.show()
        return ExitStatus.USAGE
    except TTSBatchError as error:
        click.echo(f"Error: {error}", err=True)
        return error.exit_status
    except _PipeBrokenError as error:
        if has_reader(STDOUT):  # it was another pipe
            return _report_bug(error)
        drop_stdout()
        return NO_READER
    except Exception as error:
        return _report_bug(error)


def _report_bug(error: BaseException) -> ExitStatus:
    traceback.print_exception(error)
    click.echo("Error: this is a bug in tts-batch. Please report it with the lines above.", err=True)
    return ExitStatus.BUG
