"""The figures of the README in one process: every workload on runner v2, then runner v1 and v2 without graphs.

    python benchmarks/suite.py [--shape 1.7b] [--json FILE] [--budget-s 150]

Random weights of a released shape; one warm-up pass before each engine's workloads. Prints a table; what does not fit
into the budget is said to be left out.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tts_batch.bench.engines import open_bench_engine, random_model
from tts_batch.bench.measure import measure
from tts_batch.bench.table import describe_machine
from tts_batch.bench.workload import Workload
from tts_batch.engine.request import EngineConfig

SEED_TTS = Workload("seed-tts")
FIXED = Workload("fixed", 1_024, 8, x_vector_only=True)

# name, workload, cold cache, rounds
ON_V2 = [
    ("seed-tts, ICL, 666 voices, warm", SEED_TTS, False, 3),
    ("seed-tts, ICL, 666 voices, cold", SEED_TTS, True, 2),
    ("seed-tts, ICL, one voice", replace(SEED_TTS, num_references=1), False, 2),
    ("seed-tts, x-vector, 666 voices, warm", replace(SEED_TTS, x_vector_only=True), False, 2),
    ("seed-tts, ICL, 4,352 rows", replace(SEED_TTS, num_rows=4_352), False, 1),
    ("52 frames, x-vector, 256 rows", replace(FIXED, num_rows=256), False, 3),
    ("52 frames, x-vector, 1,024 rows", FIXED, False, 3),
]
ENGINES = [
    ("v2", {}, ON_V2),
    ("v2, no graphs", {"cuda_graph": False}, [(*ON_V2[0][:3], 1)]),
    ("v2, 64 rows", {"max_num_seqs": 64}, [("52 frames, x-vector, 256 rows", replace(FIXED, num_rows=256), False, 2)]),
    ("v1, 64 rows", {"runner": "v1"}, [("52 frames, x-vector, 128 rows", replace(FIXED, num_rows=128), False, 1)]),
]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="1.7b")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--budget-s", type=float, default=150.0)
    args = parser.parse_args()
    started_s = time.monotonic()
    config = EngineConfig(model="", device="cuda")
    model = random_model(args.shape, config)
    loaded_s = time.monotonic() - started_s
    results: list[dict[str, Any]] = []
    for engine_name, settings, workloads in ENGINES:
        opening_s = time.monotonic()
        engine, preparer = open_bench_engine(model, replace(config, **settings))
        opened_s = time.monotonic() - opening_s
        warm = workloads[0][1].rows(lambda text: len(model.text_tokenizer.encode(text)))
        warm_up = measure(engine, preparer, warm if engine_name != "v1, 64 rows" else warm[:8], None)
        print(
            f"{engine_name}: opened in {opened_s:.1f} s, first clip {warm_up.first_result_s:.1f} s later "
            f"(model {loaded_s:.1f} s); {engine.info}",
            flush=True,
        )
        for name, workload, cold, rounds in workloads:
            rows = workload.rows(lambda text: len(model.text_tokenizer.encode(text)))
            for _ in range(rounds):
                if time.monotonic() - started_s > args.budget_s:
                    print(f"{engine_name:14s} {name:38s} left out: no time", flush=True)
                    break
                if cold:
                    preparer.forget_references()
                found = measure(engine, preparer, rows, None)
                at_once = min(found.attempted, int(engine.info["max_num_seqs"]))
                results.append({"engine": engine_name, "workload": name, "rows": at_once, **found.as_dict()})
                print(
                    f"{engine_name:14s} {name:38s} {found.audio_s_per_s:7.0f} audio-s/s {found.wall_s:6.2f} s, first "
                    f"{found.first_result_s:.2f}, tail {found.tail_s:.2f}, GPU {found.gpu_utilization or 0:.0%}, "
                    f"{found.completed}/{found.attempted}",
                    flush=True,
                )
        engine.close()
        del engine, preparer
        torch.cuda.empty_cache()
        if args.json:
            args.json.write_text(json.dumps({"machine": describe_machine(), "results": results}, indent=1))


if __name__ == "__main__":
    main()
