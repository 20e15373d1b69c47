"""`tts-batch synth`: start a run, or go on with it."""

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

    The same command again resumes: what is done is not made twice.
    """
    job = read_job(options, recipe=recipe)
    from tts_batch.run.job import run_job

    summary = run_job(job)
    click.echo(closing_words(summary), err=True)
    if as_json:
        click.echo(json.dumps(summary.to_dict()))
    return summary.exit_status


def closing_words(summary: JobSummary) -> str:
    """Say how a run ended."""
    told = f"{summary.out}: {summary.ok} of {summary.rows} rows are clips, {summary.audio_s:.0f} s of audio."
    if summary.failed:
        told += f" {summary.failed} failed: see {summary.out / 'failures.parquet'}."
    if summary.pending:
        told += f" {summary.pending} are left: the same command goes on."
    elif summary.exit_status == ExitStatus.STOPPED:
        told += " The manifest is left: the same command writes it."
    return told
