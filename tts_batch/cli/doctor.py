"""`tts-batch doctor`: is this machine, and is this checkpoint, fit for a run?"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tts_batch.doctor.machine import Finding, check_machine
from tts_batch.errors import ExitStatus, UsageError

if TYPE_CHECKING:
    from tts_batch.model.checkpoint import Checkpoint

_MARKS = {"ok": "ok  ", "note": "note", "problem": "BAD "}


@click.command()
@click.option("--model", help="Also load this checkpoint (folder, hub id, 'tiny') and make one short clip.")
@click.option("--device", default="auto", show_default=True, help="Where to load it: auto, cpu, cuda, xpu, npu, musa.")
@click.option("--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", show_default=True)
@click.option("--compare-official", is_flag=True, help="Also hold --model against the official qwen-tts package.")
@click.option("--official-python", metavar="FILE", default=sys.executable, help="The Python that has qwen-tts.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def doctor(
    model: str | None, device: str, dtype: str, compare_official: bool, official_python: str, as_json: bool
) -> ExitStatus:
    """Check versions, devices, sound libraries and folders; with --model, a checkpoint too.

    Exit status 3: something was found that would stop a run.
    """
    if compare_official and model is None:
        raise UsageError("--compare-official needs --model, the checkpoint to compare on.")
    findings = []
    for finding in _examine(model, device, dtype, official_python if compare_official else None):
        findings.append(finding)
        if not as_json:
            click.echo(f"{_MARKS[finding.level]} {finding.subject:<16} {finding.detail}")
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    sick = any(finding.level == "problem" for finding in findings)
    return ExitStatus.SOME_FAILED if sick else ExitStatus.OK


def _examine(model: str | None, device: str, dtype: str, official_python: str | None) -> Iterator[Finding]:
    yield from check_machine()
    if model is None:
        return
    from tts_batch.doctor.checkpoint import try_checkpoint
    from tts_batch.plan.models import find_checkpoint

    checkpoint = find_checkpoint(model)
    yield from try_checkpoint(checkpoint, device, dtype)
    if official_python is not None:
        yield from _compare(checkpoint, device, dtype, official_python)


def _compare(checkpoint: Checkpoint, device: str, dtype: str, official_python: str) -> Iterator[Finding]:
    import torch

    from tts_batch.doctor.compare_official import OfficialPackageError, compare_official

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        yield from compare_official(checkpoint.path, device, dtype, official_python=official_python).findings()
    except OfficialPackageError as error:
        yield Finding("problem", "official", str(error))
