"""The `tts-batch` command: dispatches, and turns every ending into one of the fixed exit statuses."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence

import click

from tts_batch import __version__
from tts_batch.cli.bench import bench
from tts_batch.cli.doctor import doctor
from tts_batch.cli.export import export
from tts_batch.cli.finish import finish
from tts_batch.cli.plan import plan
from tts_batch.cli.retry import retry
from tts_batch.cli.status import status
from tts_batch.cli.synth import synth
from tts_batch.cli.verify import verify
from tts_batch.cli.voices import voices
from tts_batch.errors import ExitStatus, TTSBatchError


@click.group(
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda token: token.replace("_", "-"),  # --top_k is --top-k
        "max_content_width": 100,
    }
)
@click.version_option(__version__, prog_name="tts-batch")
def cli() -> None:
    """A table of texts in, a folder of checked speech clips out.

    Data goes to stdout, talk to stderr. Exit status: 0 all rows ok, 2 usage, 3 some rows failed (plan,
    verify, doctor: findings), 4 stopped (the same command resumes), 5 could not continue, 130 interrupted, 1 a bug.
    """


for command in (synth, plan, status, retry, finish, verify, export, voices, doctor, bench):
    cli.add_command(command)


def main(args: Sequence[str] | None = None) -> int:
    """Run one command (default: `sys.argv`) and return its exit status; never raises for what a user can meet."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("tts_batch").setLevel(logging.INFO)
    try:
        return int(cli.main(args, prog_name="tts-batch", standalone_mode=False) or ExitStatus.OK)
    except click.Abort:
        return ExitStatus.INTERRUPTED
    except click.ClickException as error:
        error.show()
        return ExitStatus.USAGE
    except TTSBatchError as error:
        click.echo(f"Error: {error}", err=True)
        return error.exit_status
    except Exception:
        traceback.print_exc()
        click.echo("Error: this is a bug in tts-batch. Please report it with the lines above.", err=True)
        return ExitStatus.BUG
