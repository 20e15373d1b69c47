"""`tts-batch synth`: start a run, or go on with it."""

from __future__ import annotations

import json
from typing import Any

import click

from tts_batch.cli.options import SectionCommand, job_options
from tts_batch.cli.recipe import read_job
from tts_batch.errors import ExitStatus


@click.command(cls=SectionCommand)
@job_options
@click.option("--json", "as_json", is_flag=True, help="Print the summary of the run to stdout, as JSON.")
def synth(recipe: str | None, as_json: bool, **options: Any) -> ExitStatus:
    """Make the clips of a table, or of several: one run folder, one manifest row for every input row.

    The same command again resumes: what is done is not made twice.
    """
    job = read_job(options, recipe=recipe)
    from tts_batch.run.job import run_job

    summary = run_job(job)
    if as_json:
        click.echo(json.dumps(summary.to_dict()))
    return summary.exit_status
