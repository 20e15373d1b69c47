"""The commands that make a run folder and look after it: synth, plan, status, retry, finish and verify."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tts_batch.cli.options import JobCommand, json_option, read_job, recipe_option
from tts_batch.cli.streams import drop_stdout
from tts_batch.errors import REASONS, ExitStatus

if TYPE_CHECKING:
    from tts_batch.plan.planner import GroupTotals, Plan
    from tts_batch.store.status import JobSummary

_SUMMARY = "Print the summary of the run to stdout, as JSON."

# The settings of a retry that may differ from the run's.
_RETRY_KEYS = ("attempts", "retry_changes_seed", "row_time_limit", "device", "gpus", "max_num_seqs", "progress")

_run_folder = click.argument("out", metavar="DIR", type=click.Path(path_type=Path))


@click.command(cls=JobCommand)
@recipe_option
@json_option(_SUMMARY)
def synth(recipe: str | None, as_json: bool, **options: Any) -> ExitStatus:
    """Make the clips of a table, or of several: one run folder, one manifest row for every input row.

    The same command again resumes: rows that are done are not made twice.
    """
    job = read_job(options, recipe=recipe)
    from tts_batch.run.job import run_job

    return _end(run_job(job), as_json)


@click.command(cls=JobCommand)
@recipe_option
@click.option("--deep", is_flag=True, help="Decode every distinct reference too.")
@json_option()
def plan(recipe: str | None, deep: bool, as_json: bool, **options: Any) -> ExitStatus:
    """Check every row and estimate the run. No weights are loaded, and no file is written.

    The options are those of `synth`. Exit status 3: some rows would fail.
    """
    job = read_job(options, recipe=recipe, out=".")
    from tts_batch.plan.planner import make_plan

    made = make_plan(job, deep=deep)
    click.echo(json.dumps(made.to_dict(), indent=2) if as_json else "\n".join(_describe_plan(made)))
    return ExitStatus.SOME_FAILED if made.num_failed else ExitStatus.OK


@click.command()
@_run_folder
@json_option()
def status(out: Path, as_json: bool) -> None:
    """Show the progress of the run in DIR. Safe while it runs."""
    from tts_batch.store.status import read_status

    facts = read_status(out)
    width = max(map(len, facts))
    click.echo(json.dumps(facts) if as_json else "\n".join(f"{name:<{width}}  {facts[name]}" for name in facts))


@click.command(cls=JobCommand, keys=_RETRY_KEYS)
@_run_folder
@click.option("--reason", "reasons", multiple=True, type=click.Choice(REASONS), metavar="REASON",
              help="Only rows with this reason in failures.parquet. May be repeated. Default: all.")  # fmt: skip
@json_option(_SUMMARY)
def retry(out: Path, reasons: tuple[str, ...], as_json: bool, **changes: Any) -> ExitStatus:
    """Make the failed rows of the run in DIR again, with the run's own settings where no option is given.

    A row whose clip failed (unfinished, silent, noisy, …) gets its next seed, any other row the same seed again.
    Pending rows are made too. The table is read again: rows that failed there can be corrected in it first.
    """
    from tts_batch.run.existing_run import load_job
    from tts_batch.run.job import run_job

    job = load_job(out, **{name: value for name, value in changes.items() if value is not None})
    return _end(run_job(job, retry=[reason for reason in REASONS if not reasons or reason in reasons]), as_json)


@click.command()
@_run_folder
@json_option("Print the summary to stdout, as JSON.")
def finish(out: Path, as_json: bool) -> ExitStatus:
    """Write DIR's manifest from its journal, and clean up after a crash. No row is made.

    For a run that was interrupted and will not be resumed, and for shards whose last one was.
    """
    from tts_batch.run.existing_run import finish_run

    return _end(finish_run(out), as_json)


@click.command()
@_run_folder
@click.option("--remove-damaged", is_flag=True, help="Delete files that differ from what was written.")
@json_option("One JSON object for each problem.")
def verify(out: Path, remove_damaged: bool, as_json: bool) -> ExitStatus:
    """Decode every clip in DIR and compare it with the manifest: samples, length, bytes; list missing and stray files.

    Saved codes are compared too. Exit status 3: there are problems. Running the `synth` command again makes missing
    clips; it makes damaged ones once they are deleted, as --remove-damaged does. Otherwise nothing is changed.
    """
    from tts_batch.store import verify as verifying
    from tts_batch.store.storage import shown, working_folder

    kinds: Counter[str] = Counter()
    with working_folder(out, tables=True) as folder:
        for problem in verifying.verify_run(folder):
            kinds[problem.kind] += 1
            if remove_damaged:
                verifying.remove_damaged(folder, problem)
            if as_json:
                fields = {"kind": problem.kind, "path": problem.path, "id": problem.row_id, "message": problem.message}
                click.echo(json.dumps(fields))
            else:
                click.echo(f"{problem.kind}  {problem.path or problem.row_id}  {problem.message}")
    counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    click.echo(f"{shown(out)}: {counts or 'everything is as the manifest says'}.", err=True)
    return ExitStatus.SOME_FAILED if kinds else ExitStatus.OK


def _end(summary: JobSummary, as_json: bool) -> ExitStatus:
    """Print how a run ended, and return its status."""
    click.echo(describe_summary(summary), err=True)
    if as_json:
        try:
            click.echo(json.dumps(summary.to_dict()))
        except BrokenPipeError:  # nobody reads it; the run has ended as it has
            drop_stdout()
    return summary.exit_status


def describe_summary(summary: JobSummary) -> str:
    """Return the last line of a run: how it ended, and what to do next."""
    from tts_batch.store.storage import shown

    line = f"{shown(summary.out)}: {summary.ok} of {summary.rows} rows ok, {summary.audio_s:.0f} s of audio."
    if summary.failed:
        line += f" {summary.failed} failed: see {shown(summary.out / 'failures.parquet')}."
    if summary.pending:
        line += f" {summary.pending} pending: run the same command again to resume."
    elif summary.exit_status == ExitStatus.STOPPED:
        line += " The manifest is not written yet: run the same command again."
    return line


def _describe_plan(made: Plan) -> Iterator[str]:
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


def _length(seconds: float) -> str:
    """A length in the unit that suits it: a tenth of an hour says little, and so do ten thousand seconds."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def _describe_group(group: GroupTotals) -> Iterator[str]:
    pieces = f" in {group.num_pieces} pieces" if group.num_pieces > group.num_rows else ""
    yield (
        f"  {group.model.name} ({group.model.task or 'any task'}): {group.num_rows} rows{pieces}, "
        f"about {_length(group.expected_audio_s)} of speech, at most {_length(group.budget_audio_s)} by their budgets"
    )
    if group.gpu_s is not None and group.speed is not None:
        yield (
            f"    about {_length(group.gpu_s)} on one {group.speed.card}, shared by all GPUs of the run "
            f"(by the {group.speed.card} figures of {group.speed.entry} in benchmarks/log.md)"
        )
    if group.model.checkpoint is None:
        return
    yield (
        f"    memory of each GPU: {group.weights_bytes / 1e9:.2g} GB of weights and "
        f"{group.cache_bytes_per_row / 1e6:.2g} MB of KV cache for each row in flight, beside Code2Wav's memory"
    )
