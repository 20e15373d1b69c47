"""`tts-batch plan`: everything checked and estimated, nothing synthesised."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from tts_batch.cli.options import JobCommand
from tts_batch.cli.recipe import read_job, recipe_option
from tts_batch.errors import ExitStatus

if TYPE_CHECKING:
    from tts_batch.plan.planner import GroupTotals, Plan


@click.command(cls=JobCommand)
@recipe_option
@click.option("--deep", is_flag=True, help="Decode every distinct reference too.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def plan(recipe: str | None, deep: bool, as_json: bool, **options: Any) -> ExitStatus:
    """Check every row and estimate the run. No weights are loaded, and no file is written.

    The options are those of `synth`. Exit status 3: some rows would fail.
    """
    job = read_job(options, recipe=recipe, out=".")
    from tts_batch.plan.planner import make_plan

    made = make_plan(job, deep=deep)
    if as_json:
        click.echo(json.dumps(made.to_dict(), indent=2))
    else:
        for line in _describe(made):
            click.echo(line)
    return ExitStatus.SOME_FAILED if made.num_failed else ExitStatus.OK


def _describe(made: Plan) -> Iterator[str]:
    yield f"{made.num_rows} rows: {made.num_planned} to make, {made.num_failed} would fail"
    for group in made.groups:
        yield from _describe_group(group)
    if made.expected_end_token_failures >= 1:
        num_expected = f"{made.expected_end_token_failures:.0f}"
        yield f"  about {num_expected} of them will reach their budget without an end at the first attempt"
    for reason, count in made.failures.items():
        yield f"  {reason}: {count}"
    for row in made.examples:
        if row.failure is not None:
            yield f"{row.source} ({row.id}): {row.failure.reason}: {row.failure.message}"
    for report in made.tables:
        yield f"read: {report}"
    for note in made.notes:
        yield f"note: {note}"


def _describe_group(group: GroupTotals) -> Iterator[str]:
    pieces = f" in {group.num_pieces} pieces" if group.num_pieces > group.num_rows else ""
    yield (
        f"  {group.model.name} ({group.model.task}): {group.num_rows} rows{pieces}, "
        f"about {group.expected_audio_s / 3600:.3g} h of speech, at most {group.budget_audio_s / 3600:.3g} h by their "
        "budgets"
    )
    if group.gpu_s is not None and group.speed is not None:
        yield (
            f"    about {group.gpu_s / 3600:.2g} h on one {group.speed.card}, shared by all GPUs of the run "
            f"(by the {group.speed.card} figures of {group.speed.entry} in benchmarks/log.md)"
        )
    yield (
        f"    memory of each GPU: {group.weights_bytes / 1e9:.2g} GB of weights and "
        f"{group.cache_bytes_per_row / 1e6:.2g} MB of KV cache for each row in flight, beside Code2Wav's memory"
    )
