"""`tts-batch bench`: how fast this machine makes speech."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tts_batch.cli.ablate import ablate
from tts_batch.cli.replicas import bench_replicas
from tts_batch.errors import CannotContinueError, ExitStatus, UsageError

if TYPE_CHECKING:
    from tts_batch.bench.workload import Workload
    from tts_batch.engine.request import EngineConfig


@click.group(invoke_without_command=True)
@click.option("--shape", type=click.Choice(["1.7b", "0.6b"]), help="A released shape with random weights.")
@click.option("--model", help="Or a Base checkpoint: folder, hub id or 'tiny-random'.")
@click.option("--workload", type=click.Choice(["seed-tts", "fixed"]), default="seed-tts", show_default=True,
              help="Lengths like Seed-TTS (mean 52 frames), or 52 frames each, x-vector only.")  # fmt: skip
@click.option("--rows", type=click.IntRange(min=1), default=1_088, show_default=True)
@click.option("--references", type=click.IntRange(min=1), default=666, show_default=True, help="Distinct voices.")
@click.option("--x-vector-only", is_flag=True, help="No in-context cloning.")
@click.option("--cache", type=click.Choice(["warm", "cold"]), default="warm", show_default=True,
              help="Whether the voices are encoded before the clock starts.")  # fmt: skip
@click.option("--concurrency", default="max", show_default=True, help="Rows in flight: a number, or max.")
@click.option("--rounds", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--gpus", metavar="N|all",
              help="Replicas, one a GPU: one alone, then all together. On a CPU, N processes.")  # fmt: skip
@click.option("--placement", type=click.Choice(["colocated", "split"]), default="colocated", show_default=True,
              help="split: Code2Wav on a second GPU; with --gpus, pairs after those on one each.")  # fmt: skip
@click.option("--budget-s", type=click.IntRange(min=1), default=540, show_default=True,
              help="With --gpus: what is not measured so many seconds after the start is given up.")  # fmt: skip
@click.option("--chunked", is_flag=True, help="Audio in chunks: also measures first audio and underruns.")
@click.option("--runner", type=click.Choice(["v1", "v2"]))
@click.option("--profile", type=click.Choice(["basic", "b2", "b4", "throughput"]))
@click.option("--device", default="auto", show_default=True)
@click.option("--dtype", default="auto", show_default=True)
@click.option("--max-num-seqs", type=click.IntRange(min=1))
@click.option("--no-cuda-graph", is_flag=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write everything measured here.")
@click.pass_context
def bench(
    context: click.Context, shape: str | None, model: str | None, workload: str, rows: int, references: int,
    x_vector_only: bool, cache: str, concurrency: str, rounds: int, gpus: str | None, placement: str, budget_s: int,
    chunked: bool, runner: str | None, profile: str | None, device: str, dtype: str, max_num_seqs: int | None,
    no_cuda_graph: bool, json_path: Path | None,
) -> ExitStatus:  # fmt: skip
    """Measure audio seconds per second from prompt building to the waveform on the host.

    Start-up and warm-up are reported apart. With --shape no checkpoint is needed: the weights are random and each
    row is ended after a fixed number of frames. With --gpus the rows are shared out among replicas.

    Beside the rates: what a frame took on the device and the host by stage, CUDA graphs hit and missed, and how idle
    the GPU was between the first clip and that with which 90 % of the audio was there.
    """
    if context.invoked_subcommand:
        if any(context.get_parameter_source(name) is ParameterSource.COMMANDLINE for name in context.params):
            raise UsageError(f"options of {context.invoked_subcommand} go behind its name.")
        return ExitStatus.OK
    if (shape is None) == (model is None):
        raise UsageError("give either --shape 1.7b|0.6b or --model.")
    if concurrency != "max" and not (concurrency.isdecimal() and int(concurrency)):
        raise UsageError(f"--concurrency {concurrency!r} is neither 'max' nor a number from 1 on.")
    if gpus is None and context.get_parameter_source("budget_s") is ParameterSource.COMMANDLINE:
        raise UsageError("--budget-s goes with --gpus.")
    if gpus is not None and chunked:
        raise UsageError("--chunked does not go with --gpus: what a listener hears is measured on one engine.")
    deadline_s = time.monotonic() + budget_s
    from tts_batch.bench.workload import Workload
    from tts_batch.engine.errors import EngineError
    from tts_batch.engine.request import EngineConfig

    checkpoint = ""
    if model:
        from tts_batch.bench.engines import base_checkpoint

        checkpoint = base_checkpoint(model)
    config = EngineConfig(
        model=checkpoint, runner=runner, profile=profile, device=device, dtype=dtype, placement=placement,
        max_num_seqs=max_num_seqs, cuda_graph=not no_cuda_graph,
        code2wav_mode="chunked" if chunked else "utterance",
    )  # fmt: skip
    asked = Workload(workload, rows, references, x_vector_only or workload == "fixed")
    at_once = None if concurrency == "max" else int(concurrency)
    if gpus is not None:
        from tts_batch.bench.replica import ReplicaJob

        job = ReplicaJob(shape, config, asked, cache == "cold", at_once)
        return bench_replicas(job, gpus, rounds, deadline_s, json_path)
    from tts_batch.bench.table import print_table

    try:
        report = _measure(shape, config, asked, cold=cache == "cold", at_once=at_once, rounds=rounds)
    except EngineError as error:
        raise CannotContinueError(str(error)) from error
    if json_path:
        json_path.write_text(json.dumps(report, indent=1))
    print_table(report)
    complete = all(measured["completed"] == measured["attempted"] for measured in report["rounds"])
    return ExitStatus.OK if complete else ExitStatus.SOME_FAILED


bench.add_command(ablate)


def _measure(
    shape: str | None, config: EngineConfig, asked: Workload, *, cold: bool, at_once: int | None, rounds: int
) -> dict[str, Any]:
    """Open an engine, warm it up and measure `rounds` passes. Raises EngineError when it cannot be opened or dies."""
    from tts_batch.bench.engines import load_model, open_bench_engine, random_model
    from tts_batch.bench.gpu import HOW
    from tts_batch.bench.measure import measure
    from tts_batch.bench.player import Ear
    from tts_batch.bench.table import describe_machine

    ear = Ear() if config.code2wav_mode == "chunked" else None
    config = replace(config, on_chunk=ear)
    started_s = time.monotonic()
    network = random_model(shape, config) if shape else load_model(config)
    loaded_s = time.monotonic()
    engine, preparer = open_bench_engine(network, config)
    opened_s, opening = time.monotonic(), engine.read_meter()
    rows = asked.rows(lambda text: len(network.text_tokenizer.encode(text)))
    # Other texts and voices warm up what must stay cold.
    others = replace(asked, num_rows=min(asked.num_rows, 64), num_references=8, seed=1)
    warm_up = measure(engine, preparer, others.rows(len) if cold else rows, at_once, ear)
    measurements = []
    for _ in range(rounds):
        if cold:
            preparer.forget_references()
        measurements.append(measure(engine, preparer, rows, at_once, ear))
    graphs = engine.read_meter().graphs
    engine.close()
    return {
        "machine": describe_machine(),
        "engine": engine.info,
        "workload": {name: getattr(asked, name) for name in asked.__slots__},
        "cache": "cold" if cold else "warm",
        "concurrency": at_once or "max",
        "load_s": loaded_s - started_s,
        "open_s": opened_s - loaded_s,
        "capture_code2wav_s": opening.host_s.get("capture Code2Wav"),
        "start_to_first_clip_s": opened_s - started_s + warm_up.first_result_s,
        "gpu_measured": HOW,
        "graphs": graphs,  # since the engine was opened
        "warm_up": warm_up.as_dict(),
        "rounds": [measurement.as_dict() for measurement in measurements],
    }
