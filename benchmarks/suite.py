"""The measurements of docs/performance.md: every workload on runner v2, chunks, then v2 without graphs and v1.

    python -m benchmarks.suite [--shape 1.7b] [--json FILE] [--budget-s 540] [--only PART ...] [--list]

A part is the name of an engine (`v2`: all its workloads) or ENGINE/WORKLOAD (`v2/icl-warm`); `--list` prints them all.
Voices are encoded and the engine is warmed up before its workloads. Prints a line a round, and the parts that were
skipped for lack of time; the JSON is written after every engine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from tts_batch.bench.engines import base_checkpoint, load_model, open_bench_engine, random_model
from tts_batch.bench.gpu import METHOD
from tts_batch.bench.measure import Measurement, measure
from tts_batch.bench.player import ChunkRecorder, describe
from tts_batch.bench.table import describe_machine, stage_lines
from tts_batch.bench.workload import Workload
from tts_batch.engine.compute_loop import BURST
from tts_batch.engine.prepare import Preparer
from tts_batch.engine.request import EngineConfig, SpeechRequest
from tts_batch.model.qwen3_tts import Qwen3TTS

SEED_TTS = Workload("seed-tts")
FIXED = Workload("fixed", 1_024, 8, x_vector_only=True)


@dataclass(frozen=True, slots=True)
class Part:
    """Rounds of one workload."""

    name: str
    title: str
    workload: Workload
    rounds: int = 1
    is_cold: bool = False
    at_once: int | None = None  # rows in flight; None: as many as the engine takes


@dataclass(frozen=True, slots=True)
class EngineSetup:
    """An engine configuration, as changes of the default, and the parts that are measured with it."""

    name: str
    parts: Sequence[Part]
    settings: Mapping[str, Any] = field(default_factory=dict)  # of EngineConfig
    warm_up_rows: int | None = None  # of the first workload; None: all of them


ICL = Part("icl-warm", "seed-tts, ICL, 666 voices, warm", SEED_TTS, rounds=3)
LONG = Part("icl-4352", "seed-tts, ICL, 4,352 rows", replace(SEED_TTS, num_rows=4_352))
SMALL = Part("fixed-256", "52 frames, x-vector, 256 rows", replace(FIXED, num_rows=256), rounds=3)
CHUNKS = [
    Part(f"c{n}", f"seed-tts, ICL, {n} at once", replace(SEED_TTS, num_rows=4 * n), rounds=2, at_once=n)
    for n in (64, 128)
]

ENGINES = [
    EngineSetup(
        "v2",
        [
            ICL,
            Part("icl-cold", "seed-tts, ICL, 666 voices, cold", SEED_TTS, rounds=2, is_cold=True),
            Part("icl-one-voice", "seed-tts, ICL, one voice", replace(SEED_TTS, num_references=1), rounds=2),
            Part("x-vector", "seed-tts, x-vector, 666 voices", replace(SEED_TTS, x_vector_only=True), rounds=2),
            LONG,
            SMALL,
            Part("fixed-1024", "52 frames, x-vector, 1,024 rows", FIXED, rounds=3),
            *CHUNKS,
        ],
    ),
    EngineSetup("v2-64", [replace(SMALL, rounds=2)], {"max_num_seqs": 64}),
    EngineSetup("v2-chunked", CHUNKS, {"code2wav_mode": "chunked"}),
    EngineSetup("b2-chunked", CHUNKS[:1], {"code2wav_mode": "chunked", "profile": "b2"}),
    EngineSetup("no-graphs", [replace(ICL, rounds=2), LONG], {"cuda_graph": False}, warm_up_rows=64),
    EngineSetup(
        "v1-64",
        [Part("fixed-128", "52 frames, x-vector, 128 rows", replace(FIXED, num_rows=128))],
        {"runner": "v1", "max_num_seqs": 64},
        warm_up_rows=8,
    ),
]


def chosen(only: Sequence[str]) -> list[EngineSetup]:
    """The engines with the parts that `only` names, in the suite's order. Raises ValueError for an unknown name."""
    known = {name for engine in ENGINES for name in (engine.name, *names(engine))}
    if unknown := set(only) - known:
        raise ValueError(f"unknown part {', '.join(sorted(unknown))}: --list prints the known ones")
    found = [
        replace(
            engine, parts=[part for part in engine.parts if {engine.name, f"{engine.name}/{part.name}"} & set(only)]
        )
        for engine in ENGINES
    ]
    return [engine for engine in found if engine.parts] if only else ENGINES


def names(engine: EngineSetup) -> list[str]:
    return [f"{engine.name}/{part.name}" for part in engine.parts]


class Suite:
    """Opens one engine after another on a model and collects their measurements."""

    def __init__(self, args: argparse.Namespace, started_s: float) -> None:
        checkpoint = base_checkpoint(args.model) if args.model else ""
        self._config = EngineConfig(model=checkpoint, device=args.device, runner="v2")
        self._model: Qwen3TTS = load_model(self._config) if args.model else random_model(args.shape, self._config)
        self._max_rows: int | None = args.rows
        self._until_s = started_s + args.budget_s
        print(f"model {time.monotonic() - started_s:.1f} s; GPU and idle: {METHOD}", flush=True)
        self.results: list[dict[str, Any]] = []

    def run(self, setup: EngineSetup) -> None:
        """Measure the parts of an engine, as long as time is left."""
        if time.monotonic() > self._until_s:
            print(f"{setup.name}: skipped: no time left", flush=True)
            return
        opening_s = time.monotonic()
        chunks = ChunkRecorder() if setup.settings.get("code2wav_mode") == "chunked" else None
        engine, preparer = open_bench_engine(self._model, replace(self._config, **setup.settings, on_chunk=chunks))
        opened_s = time.monotonic() - opening_s
        capture_s = engine.read_meter().host_s.get("capture Code2Wav", 0.0)
        rows = {part.name: self._rows(part.workload) for part in setup.parts}
        for part in setup.parts:
            if not part.is_cold:
                encode_references(preparer, rows[part.name])
        warm_up = measure(engine, rows[setup.parts[0].name][: setup.warm_up_rows], None, chunks)
        print(
            f"{setup.name}: opened in {opened_s:.1f} s (Code2Wav graphs {capture_s:.1f}), warm-up "
            f"{warm_up.wall_s:.1f} s; {engine.info}",
            flush=True,
        )
        max_num_seqs = int(engine.info["max_num_seqs"])
        for part in setup.parts:
            for _ in range(part.rounds):
                if time.monotonic() > self._until_s:
                    print(f"{setup.name}/{part.name}: skipped: no time left", flush=True)
                    break
                if part.is_cold:
                    preparer.forget_references()
                found = measure(engine, rows[part.name], part.at_once, chunks)
                self._report(setup, part, found, min(part.at_once or max_num_seqs, found.attempted, max_num_seqs))
            if part.is_cold:  # restore the voices of the other parts
                for other in setup.parts:
                    encode_references(preparer, rows[other.name])
        engine.close()
        del engine, preparer
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _rows(self, workload: Workload) -> list[SpeechRequest]:
        if self._max_rows is not None:
            workload = replace(workload, num_rows=min(workload.num_rows, self._max_rows))
        return workload.requests(lambda text: len(self._model.text_tokenizer.encode(text)))

    def _report(self, setup: EngineSetup, part: Part, found: Measurement, at_once: int) -> None:
        values = found.as_dict()
        self.results.append({"engine": setup.name, "workload": part.title, "rows": at_once, **values})
        idle = "n/a" if found.gpu_idle_steady is None else f"{found.gpu_idle_steady:.0%}"
        print(
            f"{setup.name:10s} {part.title:34s} {found.audio_s_per_s:7.0f} audio-s/s {found.wall_s:6.2f} s, first "
            f"{found.first_result_s:.2f}, tail {found.tail_s:.2f}, GPU {found.gpu_utilization or 0:.0%}, idle {idle}, "
            f"{found.completed}/{found.attempted}",
            *(f"    {line}" for line in stage_lines(values)),
            *([f"    {describe(values['playback'])}"] if values["playback"] else []),
            sep="\n",
            flush=True,
        )


@torch.inference_mode()
def encode_references(preparer: Preparer, requests: Sequence[SpeechRequest]) -> None:
    """Encode all voices that are not cached yet, in bursts as an engine would. The preparer's engine must be idle."""
    for first in range(0, len(requests), BURST):
        burst = requests[first : first + BURST]
        preparer.load_ahead(burst)
        for request in burst:
            preparer.load(request)
        preparer.encode_loaded()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="1.7b")
    parser.add_argument("--model", help="a Base checkpoint instead: folder, hub id or tiny-random")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, help="limit the rows of each workload, for a trial")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--budget-s", type=float, default=540.0)
    parser.add_argument("--only", nargs="+", default=[], metavar="PART")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    started_s = time.monotonic()
    try:
        engines = chosen(args.only)
    except ValueError as error:
        parser.error(str(error))
    if args.list:
        print(*(name for engine in engines for name in names(engine)), sep="\n")
        return
    suite = Suite(args, started_s)
    for engine in engines:
        suite.run(engine)
        if args.json:
            args.json.write_text(json.dumps({"machine": describe_machine(), "results": suite.results}, indent=1))


if __name__ == "__main__":
    main()
