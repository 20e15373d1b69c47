"""`tts-batch bench`: how fast this machine makes speech."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from tts_batch.errors import ExitStatus, UsageError


@click.command()
@click.option("--shape", type=click.Choice(["1.7b", "0.6b"]), help="A released shape with random weights.")
@click.option("--model", help="Or a Base checkpoint: folder or hub id.")
@click.option("--workload", type=click.Choice(["seed-tts", "fixed"]), default="seed-tts", show_default=True,
              help="Lengths like Seed-TTS (mean 52 frames), or 52 frames each, x-vector only.")  # fmt: skip
@click.option("--rows", type=click.IntRange(min=1), default=1_088, show_default=True)
@click.option("--references", type=click.IntRange(min=1), default=666, show_default=True, help="Distinct voices.")
@click.option("--x-vector-only", is_flag=True, help="No in-context cloning.")
@click.option("--cache", type=click.Choice(["warm", "cold"]), default="warm", show_default=True,
              help="Whether the voices are encoded before the clock starts.")  # fmt: skip
@click.option("--concurrency", default="max", show_default=True, help="Rows in flight: a number, or max.")
@click.option("--rounds", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--runner", type=click.Choice(["v1", "v2"]))
@click.option("--device", default="auto", show_default=True)
@click.option("--dtype", default="auto", show_default=True)
@click.option("--max-num-seqs", type=click.IntRange(min=1))
@click.option("--no-cuda-graph", is_flag=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write everything measured here.")
def bench(
    shape: str | None, model: str | None, workload: str, rows: int, references: int, x_vector_only: bool, cache: str,
    concurrency: str, rounds: int, runner: str | None, device: str, dtype: str, max_num_seqs: int | None,
    no_cuda_graph: bool, json_path: Path | None,
) -> ExitStatus:  # fmt: skip
    """Measure audio seconds per second from prompt building to the waveform on the host.

    Start-up and warm-up are reported apart. With --shape no checkpoint is needed: the weights are random and each
    row is ended after a fixed number of frames.
    """
    if (shape is None) == (model is None):
        raise UsageError("give either --shape 1.7b|0.6b or --model.")
    if concurrency != "max" and not concurrency.isdecimal():
        raise UsageError(f"--concurrency {concurrency!r} is neither a number nor 'max'.")
    from tts_batch.bench.engines import load_model, open_bench_engine, random_model
    from tts_batch.bench.measure import measure
    from tts_batch.bench.table import describe_machine, print_table
    from tts_batch.bench.workload import Workload
    from tts_batch.engine.request import EngineConfig

    config = EngineConfig(
        model=model or "", runner=runner, device=device, dtype=dtype, max_num_seqs=max_num_seqs,
        cuda_graph=not no_cuda_graph,
    )  # fmt: skip
    started_s = time.monotonic()
    network = random_model(shape, config) if shape else load_model(config)
    loaded_s = time.monotonic()
    engine, preparer = open_bench_engine(network, config)
    opened_s = time.monotonic()
    fixed = workload == "fixed"
    asked = Workload(workload, rows, references, x_vector_only or fixed)
    bench_rows = asked.rows(lambda text: len(network.text_tokenizer.encode(text)))
    at_once = None if concurrency == "max" else int(concurrency)
    warm = bench_rows if cache == "warm" else Workload(workload, 64, 8, x_vector_only or fixed, seed=1).rows(len)
    warm_up = measure(engine, preparer, warm, at_once)
    measurements = []
    for _ in range(rounds):
        if cache == "cold":
            preparer.forget_references()
        measurements.append(measure(engine, preparer, bench_rows, at_once))
    engine.close()
    report: dict[str, Any] = {
        "machine": describe_machine(),
        "engine": engine.info,
        "workload": {name: getattr(asked, name) for name in asked.__slots__},
        "cache": cache,
        "concurrency": concurrency,
        "load_s": loaded_s - started_s,
        "open_s": opened_s - loaded_s,
        "start_to_first_clip_s": opened_s - started_s + warm_up.first_result_s,
        "warm_up": warm_up.as_dict(),
        "rounds": [measurement.as_dict() for measurement in measurements],
    }
    if json_path:
        json_path.write_text(json.dumps(report, indent=1))
    print_table(report)
    complete = all(m.completed == m.attempted for m in measurements)
    return ExitStatus.OK if complete else ExitStatus.SOME_FAILED
