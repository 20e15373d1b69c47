"""What small batches cost `tts_batch.ray.TtsBatch`: `python -m benchmarks.blocks`, on the device that is there.

The same rows in batches of 1, 2, 4 … times the rows that the engine decodes together, against one batch of all.
"""

from __future__ import annotations

import argparse
import random
import time

import numpy as np

from tts_batch.ray import TtsBatch

SENTENCE = "the quick brown fox jumps over a lazy dog while seven old sailors sing about rain and distant harbours"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--max-num-seqs", type=int, default=16)
    given = parser.parse_args()
    draw = random.Random(1)
    texts = [" ".join(draw.choices(SENTENCE.split(), k=draw.randint(2, 20))) + "." for _ in range(given.rows)]
    batch = {"text": np.array(texts, object), "speaker": np.array(["ryan"] * given.rows, object)}
    speak = TtsBatch(given.model, runner="v2", max_num_seqs=given.max_num_seqs)
    speak({name: column[: given.max_num_seqs] for name, column in batch.items()})  # warm
    whole = 0.0
    sizes = [given.rows, *(given.max_num_seqs << step for step in range(4) if given.max_num_seqs << step < given.rows)]
    for size in sizes:
        started, audio_s = time.perf_counter(), 0.0
        for first in range(0, given.rows, size):
            made = speak({name: column[first : first + size] for name, column in batch.items()})
            audio_s += float(made["duration_s"].sum())
        speed = audio_s / (time.perf_counter() - started)
        whole = whole or speed
        print(f"batches of {size}: {speed:.2f} audio-s/s, {speed / whole:.2f} of one batch of all", flush=True)


if __name__ == "__main__":
    main()
