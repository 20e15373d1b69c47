"""`tts-batch status`: the progress of a run, read from its folder."""

from __future__ import annotations

import json

import click


@click.command()
@click.argument("out", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(out: str, as_json: bool) -> None:
    """Show the progress of the run in DIR. Safe while it runs."""
    from pathlib import Path

    from tts_batch.store.status import read_status

    facts = read_status(Path(out))
    if as_json:
        click.echo(json.dumps(facts))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {value}")
