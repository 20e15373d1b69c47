"""`tts-batch status`: how far a run is, from its folder alone."""

from __future__ import annotations

import json

import click


@click.command()
@click.argument("out", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(out: str, as_json: bool) -> None:
    """Show how far the run in DIR is. Safe while it runs."""
    from pathlib import Path

    from tts_batch.store.status import read_status

    facts = read_status(Path(out))
    if as_json:
        click.echo(json.dumps(facts))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        click.echo(f"{name:<{width}}  {value}")
