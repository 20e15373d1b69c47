"""The share of clips that keep their greedy codes when batch, runner or precision change, at a released shape.

    python -m benchmarks.agreement [--shape 1.7b] [--clips 64] [--frames 40]

With random weights, whose margins are not the released model's: this measures the rounding of the engine.
Prints, for each pair, the share of clips whose codes are equal throughout and the mean frame of the first difference.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import torch

from tts_batch.bench.engines import open_bench_engine, random_model
from tts_batch.bench.workload import Workload, with_length
from tts_batch.engine.generation import generate
from tts_batch.engine.request import EngineConfig, SamplingParams, SpeechRequest
from tts_batch.model.qwen3_tts import Qwen3TTS

GREEDY = SamplingParams(do_sample=False, subtalker_dosample=False)


def greedy_codes(model: Qwen3TTS, requests: list[SpeechRequest], **config: object) -> dict[str, np.ndarray]:
    """The codes [frames, 16] of every request, by one engine."""
    engine, _ = open_bench_engine(model, EngineConfig(model="", device="cuda", **config))
    codes = {result.request_id: result.codes for result in generate(engine, requests)}
    engine.close()
    return codes


def describe(name: str, some: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> str:
    first = []
    for key in some.keys() & others.keys():
        differs = (some[key] != others[key]).any(axis=1)
        first.append(int(differs.argmax()) if differs.any() else len(differs))
    equal = np.mean([frames == len(some[key]) for frames, key in zip(first, some.keys() & others.keys(), strict=True)])
    return f"{name:44s} {equal:6.1%} of clips equal, first difference at frame {np.mean(first):.1f} on average"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", default="1.7b")
    parser.add_argument("--clips", type=int, default=64)
    parser.add_argument("--frames", type=int, default=40)
    args = parser.parse_args()
    lines = []
    codes = {}
    for dtype in ("bfloat16", "float32"):
        model = random_model(args.shape, EngineConfig(model="", device="cuda", dtype=dtype))
        encode = model.text_tokenizer.encode
        rows = Workload("fixed", args.clips, 8, True).requests(lambda text, encode=encode: len(encode(text)))
        rows = [with_length(replace(row, sampling=GREEDY), args.frames) for row in rows]
        if dtype == "bfloat16":
            crowd = Workload("fixed", 256, 8, True, seed=9).requests(lambda text, encode=encode: len(encode(text)))
            crowd = [
                with_length(replace(row, request_id=f"crowd{i}", sampling=GREEDY), args.frames)
                for i, row in enumerate(crowd[args.clips :])
            ]
            codes["alone"] = greedy_codes(model, rows, dtype=dtype, runner="v2", max_num_seqs=1)
            codes["crowd"] = greedy_codes(model, rows + crowd, dtype=dtype, runner="v2", max_num_seqs=256)
            codes["v1"] = greedy_codes(model, rows, dtype=dtype, runner="v1", max_num_seqs=64)
        else:
            codes["fp32 v2"] = greedy_codes(model, rows, dtype=dtype, runner="v2", max_num_seqs=64)
            codes["fp32 v1"] = greedy_codes(model, rows, dtype=dtype, runner="v1", max_num_seqs=64)
        del model
        torch.cuda.empty_cache()
    for name, some, other in (
        ("bfloat16 v2, alone against among 256 rows", "alone", "crowd"),
        ("bfloat16, v2 among 256 rows against v1", "crowd", "v1"),
        ("bfloat16 v2 among 256 rows against float32", "crowd", "fp32 v2"),
        ("float32, v2 against v1", "fp32 v2", "fp32 v1"),
    ):
        lines.append(describe(name, codes[some], codes[other]))
    print(f"{torch.cuda.get_device_name()}, {args.shape}, {args.clips} clips of {args.frames} frames, greedy")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
