"""Greedy clips of the trained `tiny` checkpoint by engines native and vllm, compared frame by frame.

    python benchmarks/vllm_codes.py --json tiny.json      needs a CUDA device and the extra vllm

vLLM-Omni keeps its codes to itself, so frames are compared by their audio: equal codes give nearly equal samples.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tts_batch.engine.generation import generate
from tts_batch.engine.registry import open_engine
from tts_batch.engine.request import SAMPLES_PER_FRAME, EngineConfig, SamplingParams, SpeechRequest
from tts_batch.model.tiny import build_tiny

TEXTS = [
    "Hello there.",
    "The quick brown fox jumps over the lazy dog.",
    "A table of texts goes in, and a folder of clips comes out.",
    "Nobody knew what the machine would say next.",
]
SAME = 0.9  # correlation of two frames' samples


def requests() -> list[SpeechRequest]:
    greedy = SamplingParams(do_sample=False, subtalker_dosample=False)
    return [
        SpeechRequest(f"row{n}", text, "custom_voice", 0, 120, greedy, language="english", speaker="ryan")
        for n, text in enumerate(TEXTS)
    ]


def clips(engine: str, config: EngineConfig) -> dict[str, Any]:
    opened = open_engine(engine, config)
    try:
        return {result.request_id: result for result in generate(opened, requests())}
    finally:
        opened.close()


def leading_frames(ours: np.ndarray, theirs: np.ndarray) -> int:
    """How many frames from the start are the same in both."""
    count = min(len(ours), len(theirs)) // SAMPLES_PER_FRAME
    for number in range(count):
        part = slice(number * SAMPLES_PER_FRAME, (number + 1) * SAMPLES_PER_FRAME)
        a, b = ours[part], theirs[part]
        norm = float(np.linalg.norm(a) * np.linalg.norm(b))
        if norm > 1e-3 and float(a @ b) / norm < SAME:
            return number
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    asked = parser.parse_args()
    config = EngineConfig(model=str(build_tiny("tiny", "custom_voice")), device="cuda", dtype="bfloat16")
    ours = clips("native", config)
    options = {"subtalker_dosample": "false"}
    eager = EngineConfig(config.model, device="cuda", cuda_graph=False, options=options, stall_timeout_s=60.0)
    theirs = clips("vllm", eager)
    rows = {
        name: {
            "native": [ours[name].finish_reason, ours[name].num_frames],
            "vllm": [theirs[name].finish_reason, theirs[name].num_frames, theirs[name].error],
            "same_leading_frames": None
            if theirs[name].audio is None
            else leading_frames(ours[name].audio, theirs[name].audio),
        }
        for name in ours
    }
    asked.json.write_text(json.dumps(rows, indent=1))
    print(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
