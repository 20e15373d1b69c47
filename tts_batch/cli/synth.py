"""`tts-batch synth`: start a run, or resume it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from tts_batch.cli.options import JobCommand
from tts_batch.cli.recipe import read_job, recipe_option
from tts_batch.errors import ExitStatus

if TYPE_CHECKING:
    from tts_batch.store.status import JobSummary


@click.command(cls=JobCommand)
@recipe_option
@click.option("--json", "as_json", is_flag=True, help="Print the summary of the run to stdout, as JSON.")
def synth(recipe: str | None, as_json: bool, **options: Any) -> ExitStatus:
    """Make the clips of a table, or of several: one run folder, one manifest row for every input row.

    The same command again resumes: rows that are done are not made twice.
    """
    job = read_job(options, recipe=recipe)
    from tts_batch.run.job import run_job

    summary = run_job(job)
    click.echo(describe_summary(summary), err=True)
    if as_json:
        click.echo(json.dumps(summary.to_dict()))
    return summary.exit_status


def describe_summary(summary: JobSummary) -> str:
    """Return the last line of a run: how it ended, and what to do next."""
    line = f"{summary.out}: {summary.ok} of {summary.rows} rows ok, {summary.audio_s:.0f} s of audio."
    if summary.failed:
        line += f" {summary.failed} failed: see {summary.out / 'failures.parquet'}."
    if summary.pending:
        line += f" {summary.pending} pending: run the same command again to resume."
    elif summary.exit_status == ExitStatus.STOPPED:
        line += " The manifest is not written yet: run the same command again."
    return line
