"""`tts-batch finish`: write the manifest of what is done, after a crash or the last shard."""

from __future__ import annotations

import json

import click

from tts_batch.cli.synth import describe_summary
from tts_batch.errors import ExitStatus


@click.command()
@click.argument("out", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print the summary to stdout, as JSON.")
def finish(out: str, as_json: bool) -> ExitStatus:
    """Write DIR's manifest from its journal, and clean up after a crash. No row is made.

    For a run that was interrupted and will not be resumed, and for shards whose last one was.
    """
    from pathlib import Path

    from tts_batch.run.existing_run import finish_run

    summary = finish_run(Path(out))
    click.echo(describe_summary(summary), err=True)
    if as_json:
        click.echo(json.dumps(summary.to_dict()))
    return summary.exit_status
