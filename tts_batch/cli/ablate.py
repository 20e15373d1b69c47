"""`tts-batch bench ablate`: what each part of the engine is worth."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tts_batch.errors import CannotContinueError, ExitStatus, UsageError

if TYPE_CHECKING:
    from tts_batch.bench.ablate import Comparison


@click.command()
@click.option("--shape", type=click.Choice(["1.7b", "0.6b"]), help="A released shape with random weights.")
@click.option("--model", help="Or a Base checkpoint: folder, hub id or 'tiny-random'.")
@click.option("--rows", type=click.IntRange(min=1), default=1_088, show_default=True)
@click.option("--references", type=click.IntRange(min=1), default=666, show_default=True, help="Distinct voices.")
@click.option("--rounds", type=click.IntRange(min=1), default=2, show_default=True, help="Turns of each.")
@click.option("--budget-s", type=click.IntRange(1, 600), default=540, show_default=True,
              help="What would not end within so many seconds of the start is left out.")  # fmt: skip
@click.option("--only", multiple=True, metavar="NAME", help="Of all variants these; may be given several times.")
@click.option("--device", default="auto", show_default=True)
@click.option("--dtype", default="auto", show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write everything measured here.")
def ablate(
    shape: str | None, model: str | None, rows: int, references: int, rounds: int, budget_s: int,
    only: tuple[str, ...], device: str, dtype: str, json_path: Path | None,
) -> ExitStatus:  # fmt: skip
    """Compare runner v2 as it is with itself less one optimisation, in turns: A B A B, in one process.

    Each line gives audio seconds per second and, of the default before it, the share: its median, and the least and
    the most of all rounds.
    """
    if (shape is None) == (model is None):
        raise UsageError("give either --shape 1.7b|0.6b or --model.")
    started_s = time.monotonic()
    from tts_batch.bench.ablate import VARIANTS, v2_over_v1
    from tts_batch.bench.ablate import ablate as compare
    from tts_batch.bench.engines import base_checkpoint, load_model, random_model
    from tts_batch.bench.table import COMPARISON_HEAD, comparison_line, describe_machine
    from tts_batch.bench.workload import Workload
    from tts_batch.engine.errors import EngineError
    from tts_batch.engine.request import EngineConfig

    if unknown := set(only) - {variant.name for variant in VARIANTS}:
        names = ", ".join(variant.name for variant in VARIANTS)
        raise UsageError(f"--only {', '.join(sorted(unknown))}: the variants are {names}.")
    variants = [variant for variant in VARIANTS if not only or variant.name in only]
    config = EngineConfig(model=base_checkpoint(model) if model else "", runner="v2", device=device, dtype=dtype)
    workload = Workload("seed-tts", rows, references)
    report: dict[str, Any] = {"machine": describe_machine(), "rows": rows, "rounds": rounds, "variants": []}
    click.echo(", ".join(f"{name} {value}" for name, value in report["machine"].items()))
    click.echo(COMPARISON_HEAD)

    comparisons: list[Comparison] = []

    def time_left_s() -> float:
        return started_s + budget_s - time.monotonic()

    try:
        network = random_model(shape, config) if shape else load_model(config)
        for found in compare(network, config, workload, rounds, time_left_s, variants):
            comparisons.append(found)
            report["variants"].append(found.as_dict())
            report["v2_b2_over_v1_b2"] = v2_over_v1(comparisons)
            click.echo(comparison_line(report["variants"][-1]))
            if json_path:  # each time: what was measured stays, whatever comes next
                json_path.write_text(json.dumps(report, indent=1))
    except EngineError as error:
        raise CannotContinueError(str(error)) from error
    if (times := report.get("v2_b2_over_v1_b2")) is not None:
        click.echo(f"v2-b2 is {times:.2f} times as fast as v1-b2")
    complete = all(found["is_complete"] and not found["problem"] for found in report["variants"])
    return ExitStatus.OK if complete else ExitStatus.SOME_FAILED
