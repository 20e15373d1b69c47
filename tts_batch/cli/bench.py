"""`tts-batch bench`: how fast this machine makes speech."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tts_batch.choices import BENCH_CACHES, BENCH_ENGINES, BENCH_SHAPES, BENCH_WORKLOADS
from tts_batch.engine.choices import DEVICES, DTYPES, PLACEMENTS, PROFILES, RUNNERS
from tts_batch.errors import CannotContinueError, ExitStatus, UsageError

if TYPE_CHECKING:
    from tts_batch.bench.workload import Workload
    from tts_batch.engine.request import EngineConfig


@click.command()
@click.option("--engine", "engines", type=click.Choice(BENCH_ENGINES), multiple=True, default=("native",),
              show_default=True, help="What to measure. May be repeated: they are compared.")  # fmt: skip
@click.option("--shape", type=click.Choice(BENCH_SHAPES), help="A released shape with random weights.")
@click.option("--model", help="Or a Base checkpoint: folder, hub id or 'tiny-random'.")
@click.option("--workload", type=click.Choice(BENCH_WORKLOADS), default="seed-tts", show_default=True,
              help="Lengths like Seed-TTS (mean 52 frames), or 52 frames each, x-vector only.")  # fmt: skip
@click.option("--rows", type=click.IntRange(min=1), default=1_088, show_default=True)
@click.option("--references", type=click.IntRange(min=1), default=666, show_default=True, help="Distinct voices.")
@click.option("--x-vector-only", is_flag=True, help="No in-context cloning.")
@click.option("--cache", type=click.Choice(BENCH_CACHES), default="warm", show_default=True,
              help="Whether the voices are encoded before the clock starts.")  # fmt: skip
@click.option("--concurrency", default="max", show_default=True, help="Rows in flight: a number, or max.")
@click.option("--rounds", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--placement", type=click.Choice(PLACEMENTS), default="colocated", show_default=True,
              help="split: Code2Wav on a second GPU.")  # fmt: skip
@click.option("--chunked", is_flag=True, help="Audio in chunks: also measures first audio and underruns.")
@click.option("--runner", type=click.Choice(RUNNERS))
@click.option("--profile", type=click.Choice(PROFILES))
@click.option("--device", type=click.Choice(DEVICES), default="auto", show_default=True)
@click.option("--dtype", type=click.Choice(DTYPES), default="auto", show_default=True)
@click.option("--max-num-seqs", type=click.IntRange(min=1))
@click.option("--no-cuda-graph", is_flag=True)
@click.option("--engine-option", "pairs", multiple=True, metavar="NAME=VALUE", help="An option of the engine's own.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Also write everything measured here.")
def bench(
    engines: tuple[str, ...], shape: str | None, model: str | None, cache: str, concurrency: str, rounds: int,
    chunked: bool, no_cuda_graph: bool, json_path: Path | None, workload: str, rows: int, references: int,
    x_vector_only: bool, pairs: tuple[str, ...], **engine_options: Any,
) -> ExitStatus:  # fmt: skip
    """Measure audio seconds per second on this machine, from prompt building to the waveform on the host.

    Start-up and warm-up are reported apart. With --shape no checkpoint is needed: the weights are random and each
    row ends after a fixed number of frames. Engine vllm reads weights from a folder: with --shape, one of 5 GB that is
    written to the cache once.

    Beside the rates: the time of a frame on the device and the host by stage, CUDA graph hits and misses, and how idle
    the GPU was between the first clip and the one that completed 90 % of the audio.
    """
    if (shape is None) == (model is None):
        raise UsageError("give either --shape 1.7b|0.6b or --model.")
    if concurrency != "max" and not (concurrency.isdecimal() and int(concurrency)):
        raise UsageError(f"--concurrency {concurrency!r} is neither 'max' nor a number from 1 on.")
    if any(pair.find("=") < 1 for pair in pairs):
        raise UsageError("use --engine-option NAME=VALUE.")
    if "vllm" in engines and cache == "cold":
        raise UsageError("--cache cold is for engine native alone: vLLM-Omni cannot be told to forget voices.")
    from tts_batch.bench.engines import base_checkpoint
    from tts_batch.bench.table import print_ratio, print_table
    from tts_batch.bench.workload import Workload
    from tts_batch.engine.errors import EngineError
    from tts_batch.engine.request import EngineConfig

    config = EngineConfig(
        model=base_checkpoint(model) if model else "",
        cuda_graph=not no_cuda_graph,
        code2wav_mode="chunked" if chunked else "utterance",
        options=dict(pair.split("=", 1) for pair in pairs),
        **engine_options,
    )
    requests = Workload(workload, rows, references, x_vector_only or workload == "fixed")
    in_flight = None if concurrency == "max" else int(concurrency)
    reports = {}
    for name in dict.fromkeys(engines):
        try:
            report = _measure(name, shape, config, requests, cold=cache == "cold", concurrency=in_flight, rounds=rounds)
        except EngineError as error:
            raise CannotContinueError(str(error)) from error
        reports[name] = report
        if json_path:
            json_path.write_text(json.dumps(report if len(engines) == 1 else reports, indent=1))
        print_table(report)
    if len(reports) > 1:
        print_ratio(reports)
    rounds_made = [measured for report in reports.values() for measured in report["rounds"]]
    complete = all(measured["completed"] == measured["attempted"] for measured in rounds_made)
    return ExitStatus.OK if complete else ExitStatus.SOME_FAILED


def _measure(
    name: str,
    shape: str | None,
    config: EngineConfig,
    workload: Workload,
    *,
    cold: bool,
    concurrency: int | None,
    rounds: int,
) -> dict[str, Any]:
    """Open an engine, warm it up and measure `rounds` passes. Raises EngineError when it cannot be opened or dies."""
    from tts_batch.bench.gpu import METHOD
    from tts_batch.bench.measure import measure, read_meter
    from tts_batch.bench.opening import load_native, load_vllm
    from tts_batch.bench.player import ChunkRecorder
    from tts_batch.bench.table import describe_machine

    chunks = ChunkRecorder() if config.code2wav_mode == "chunked" and name == "native" else None
    config = replace(config, on_chunk=chunks)
    started_s = time.monotonic()
    loaded = (load_native if name == "native" else load_vllm)(shape, config)
    requests = workload.requests(lambda text: len(loaded.tokenizer.encode(text)))
    # Other texts and voices warm up what must stay cold.
    others = replace(workload, num_rows=min(workload.num_rows, 64), num_references=8, seed=1)
    first_requests = others.requests(len) if cold else requests
    config = replace(config, max_frames=max(request.max_frames for request in [*requests, *first_requests]))
    loaded_s = time.monotonic()
    engine, forget_references = loaded.open(config)
    opened_s, opening = time.monotonic(), read_meter(engine)
    warm_up = measure(engine, first_requests, concurrency, chunks)
    measurements = []
    for _ in range(rounds):
        if cold:
            forget_references()
        measurements.append(measure(engine, requests, concurrency, chunks))
    graphs = read_meter(engine).graphs
    engine.close()
    return {
        "machine": describe_machine(),
        "engine": engine.info,
        "workload": {name: getattr(workload, name) for name in workload.__slots__},
        "cache": "cold" if cold else "warm",
        "concurrency": concurrency or "max",
        "load_s": loaded_s - started_s,
        "open_s": opened_s - loaded_s,
        "capture_code2wav_s": opening.host_s.get("capture Code2Wav"),
        "start_to_first_clip_s": opened_s - started_s + warm_up.first_result_s,
        "gpu_measured": METHOD,
        "graphs": graphs,  # since the engine was opened
        "warm_up": warm_up.as_dict(),
        "rounds": [measurement.as_dict() for measurement in measurements],
    }
