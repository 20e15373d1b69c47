"""`tts-batch retry`: make the failed rows of a run again."""

from __future__ import annotations

import json
from typing import Any

import click

from tts_batch.cli.options import JobCommand
from tts_batch.cli.synth import describe_summary
from tts_batch.errors import REASONS, ExitStatus

# The settings that may differ from the run's.
_KEYS = ("attempts", "retry_changes_seed", "row_time_limit", "device", "gpus", "max_num_seqs", "progress")


@click.command(cls=JobCommand, keys=_KEYS)
@click.argument("out", metavar="DIR")
@click.option(
    "--reason",
    "reasons",
    multiple=True,
    type=click.Choice(REASONS),
    metavar="REASON",
    help="Only rows with this reason in failures.parquet. May be repeated. Default: all.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary of the run to stdout, as JSON.")
def retry(out: str, reasons: tuple[str, ...], as_json: bool, **changes: Any) -> ExitStatus:
    """Make the failed rows of the run in DIR again, with the run's own settings where no option is given.

    A row whose clip failed (unfinished, silent, noisy, …) gets its next seed, any other row the same seed again.
    Pending rows are made too. The table is read again: rows that failed there can be corrected in it first.
    """
    from pathlib import Path

    from tts_batch.run.existing_run import load_job
    from tts_batch.run.job import run_job

    job = load_job(Path(out), **{name: value for name, value in changes.items() if value is not None})
    summary = run_job(job, retry=[reason for reason in REASONS if not reasons or reason in reasons])
    click.echo(describe_summary(summary), err=True)
    if as_json:
        click.echo(json.dumps(summary.to_dict()))
    return summary.exit_status
