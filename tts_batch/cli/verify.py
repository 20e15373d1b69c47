"""`tts-batch verify`: is everything in a run folder as its manifest says?"""

from __future__ import annotations

import json
from collections import Counter

import click

from tts_batch.errors import ExitStatus


@click.command()
@click.argument("out", metavar="DIR")
@click.option("--remove-damaged", is_flag=True, help="Delete the files of rows that are not what was written.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each finding.")
def verify(out: str, remove_damaged: bool, as_json: bool) -> ExitStatus:
    """Decode every clip in DIR and hold it against the manifest: samples, length, bytes; find what is missing or lost.

    Saved codes count as the clip does. Exit status 3 when there are findings. The same `synth` command again makes what
    is missing; what is damaged it makes once that is deleted, which --remove-damaged does. Else nothing is changed.
    """
    from pathlib import Path

    from tts_batch.store import verify as verifying

    kinds: Counter[str] = Counter()
    for finding in verifying.verify_run(Path(out)):
        kinds[finding.kind] += 1
        if remove_damaged:
            verifying.remove_damaged(Path(out), finding)
        if as_json:
            about = {"kind": finding.kind, "path": finding.path, "id": finding.row_id, "message": finding.message}
            click.echo(json.dumps(about))
        else:
            click.echo(f"{finding.kind}  {finding.path or finding.row_id}  {finding.message}")
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    click.echo(f"{out}: {told or 'all is as the manifest says'}.", err=True)
    return ExitStatus.SOME_FAILED if kinds else ExitStatus.OK
