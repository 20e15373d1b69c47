"""`tts-batch doctor`: is this machine, and is this checkpoint, fit for a run?"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tts_batch.cli.options import json_option
from tts_batch.engine.choices import DEVICES, DTYPES
from tts_batch.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from tts_batch.doctor import Finding


@click.command()
@click.option("--model", help="Also load this checkpoint (folder, hub id, 'tiny') and make one short clip.")
@click.option("--device", type=click.Choice(DEVICES), default="auto", show_default=True, help="Where to load it.")
@click.option("--dtype", type=click.Choice([name for name in DTYPES if name != "auto"]), default="float32",
              show_default=True)  # fmt: skip
@click.option("--compare-official", is_flag=True, help="Also compare --model with the official qwen-tts package.")
@click.option("--official-python", metavar="FILE", default=sys.executable, help="The Python that has qwen-tts.")
@json_option()
def doctor(
    model: str | None, device: str, dtype: str, compare_official: bool, official_python: str, as_json: bool
) -> ExitStatus:
    """Check versions, devices, sound libraries and folders; with --model, a checkpoint too.

    Exit status 3: there is a problem that would stop a run.
    """
    if compare_official and model is None:
        raise UsageError("--compare-official needs --model, the checkpoint to compare on.")
    findings = []
    for finding in _findings(model, device, dtype, official_python if compare_official else None):
        findings.append(finding)
        if not as_json:
            click.echo(f"{finding.level:<7}  {finding.subject:<16} {finding.detail}")
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    return ExitStatus.SOME_FAILED if any(found.level == "problem" for found in findings) else ExitStatus.OK


def _findings(model: str | None, device: str, dtype: str, official_python: str | None) -> Iterator[Finding]:
    from tts_batch.doctor.machine import check_machine

    yield from check_machine()
    if model is None:
        return
    from tts_batch.doctor.checkpoint import check_checkpoint
    from tts_batch.plan.models import find_checkpoint

    checkpoint = find_checkpoint(model)
    yield from check_checkpoint(checkpoint, device, dtype)
    if official_python is not None:
        from tts_batch.doctor.compare_official import check_parity

        yield from check_parity(checkpoint, device, dtype, official_python)
