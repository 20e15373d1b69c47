"""`tts-batch retry`: make rows again that failed."""

from __future__ import annotations

import json
from typing import Any

import click

from tts_batch.cli.options import gpu_positions
from tts_batch.cli.synth import closing_words
from tts_batch.errors import REASONS, ExitStatus


@click.command()
@click.argument("out", metavar="DIR")
@click.option(
    "--reason",
    "reasons",
    multiple=True,
    type=click.Choice(REASONS),
    metavar="REASON",
    help="Only rows that failed for this, as failures.parquet says it; may be repeated. Default: all.",
)
@click.option("--attempts", type=int, metavar="N", help="Tries a row gets now. Default: as before.")
@click.option("--retry-changes-seed", is_flag=True, default=None, help="Attempts may leave a row's own seed.")
@click.option("--row-time-limit", type=float, metavar="S", help="Seconds a row may take.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda", "xpu", "npu", "musa"]), help="Default: as before.")
@click.option("--gpus", metavar="I,J,...", callback=gpu_positions, help="Positions among the visible devices.")
@click.option("--max-num-seqs", type=int, metavar="N", help="Rows decoded together.")
@click.option("--progress", type=click.Choice(["auto", "bar", "plain", "none"]), help="Default: as before.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary of the run to stdout, as JSON.")
def retry(out: str, reasons: tuple[str, ...], as_json: bool, **changes: Any) -> ExitStatus:
    """Make the failed rows of the run in DIR again, with the settings that it had.

    A row that failed by what was drawn (an unfinished, silent or noisy clip, …) gets its next seed, any other the same
    again. Rows that are pending are made too. What fails in the table itself is read anew, so mend the table first.
    """
    from pathlib import Path

    from tts_batch.run.job import run_job
    from tts_batch.run.recall import recall_job

    job = recall_job(Path(out), **{name: value for name, value in changes.items() if value is not None})
    summary = run_job(job, retry=[reason for reason in REASONS if not reasons or reason in reasons])
    click.echo(closing_words(summary), err=True)
    if as_json:
        click.echo(json.dumps(summary.to_dict()))
    return summary.exit_status
