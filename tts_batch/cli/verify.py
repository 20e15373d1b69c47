"""`tts-batch verify`: is everything in a run folder as its manifest says it is?"""

from __future__ import annotations

import json
from collections import Counter

import click

from tts_batch.errors import ExitStatus


@click.command()
@click.argument("out", metavar="DIR")
@click.option("--remove-damaged", is_flag=True, help="Delete files that differ from what was written.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each problem.")
def verify(out: str, remove_damaged: bool, as_json: bool) -> ExitStatus:
    """Decode every clip in DIR and compare it with the manifest: samples, length, bytes; list missing and stray files.

    Saved codes are compared too. Exit status 3: there are problems. Running the `synth` command again makes missing
    clips; it makes damaged ones once they are deleted, as --remove-damaged does. Otherwise nothing is changed.
    """
    from pathlib import Path

    from tts_batch.store import verify as verifying

    kinds: Counter[str] = Counter()
    for problem in verifying.verify_run(Path(out)):
        kinds[problem.kind] += 1
        if remove_damaged:
            verifying.remove_damaged(Path(out), problem)
        if as_json:
            fields = {"kind": problem.kind, "path": problem.path, "id": problem.row_id, "message": problem.message}
            click.echo(json.dumps(fields))
        else:
            click.echo(f"{problem.kind}  {problem.path or problem.row_id}  {problem.message}")
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    click.echo(f"{out}: {counts or 'everything is as the manifest says'}.", err=True)
    return ExitStatus.SOME_FAILED if kinds else ExitStatus.OK
