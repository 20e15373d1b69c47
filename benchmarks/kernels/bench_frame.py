"""Time one frame of runner v2 at the released 1.7B shape, random weights: whole and in parts, eager and replayed.

    python benchmarks/kernels/bench_frame.py [--rows 64 256 512 1024] [--context 120] [--profile FILE]
    python benchmarks/kernels/bench_frame.py --rows 1 16 32 64 96 128 --small-batch 0 64 128 [--tiles FILE]

Prints a table: milliseconds a frame and what that is in audio seconds per second (without prefill and Code2Wav).
--small-batch measures every frame once for each limit: up to so many rows the kernels of small_batch.py serve.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from tts_batch.engine.frame_loop import FrameLoop
from tts_batch.engine.kernels import small_batch_tiles
from tts_batch.engine.kernels.small_batch_tiles import ROW_BUCKETS, Tile
from tts_batch.engine.loops import DEFAULT_LIMITS
from tts_batch.engine.noise import seed_words
from tts_batch.engine.packed import SMALL_BATCH, PackedTalker
from tts_batch.engine.request import SamplingParams
from tts_batch.engine.request_state import NEVER, RUNNING, RequestState, StateShape, warp_rows
from tts_batch.model.config import CodePredictorConfig, TalkerConfig
from tts_batch.model.talker import Talker

PAGE_SIZE = 64
EOS_ID = 2150


def build_talker(size: str) -> Talker:
    """The released shape with unit-variance random weights, bfloat16 on the GPU."""
    hidden, intermediate = {"1b7": (2048, 6144), "0b6": (1024, 3072)}[size]
    stack = {
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    }  # fmt: skip
    talker = TalkerConfig(
        hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=28, vocab_size=3072,
        text_vocab_size=151936, text_hidden_size=2048, num_code_groups=16, max_position_embeddings=32768,
        codec_pad_id=2148, codec_bos_id=2149, codec_eos_token_id=EOS_ID, codec_think_id=2154, codec_nothink_id=2155,
        codec_think_bos_id=2156, codec_think_eos_id=2157, **stack,
    )  # fmt: skip
    predictor = CodePredictorConfig(
        hidden_size=1024, intermediate_size=3072, num_hidden_layers=5, vocab_size=2048, num_code_groups=16, **stack
    )
    torch.manual_seed(0)
    with torch.device("meta"):
        model = Talker(talker, predictor)
    model = model.to_empty(device="cuda").to(torch.bfloat16).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.fill_(1.0)
            elif name.endswith("bias"):
                weight.zero_()
            else:
                weight.normal_(std=1.0 if "embedding" in name else weight.shape[-1] ** -0.5)
    return model


def build_state(weights: PackedTalker, rows: int, context: int, max_frames: int) -> tuple[FrameLoop, torch.Tensor]:
    """All rows running behind a prompt of `context` tokens; nothing ends within max_frames."""
    pages = -(-(context + max_frames + 1) // PAGE_SIZE)
    hidden = weights.frame_tables.shape[1]
    shape = StateShape(rows, hidden, 3072, max_frames + 1, 64, pages, pad_text_id=5)
    state = RequestState(shape, torch.bfloat16, "cuda")
    config = weights.talker.config
    kv = torch.empty(
        config.num_hidden_layers, 2, rows * pages, config.num_key_value_heads, PAGE_SIZE, config.head_dim,
        dtype=torch.bfloat16, device="cuda",
    ).normal_()  # fmt: skip
    state.hidden.normal_()
    state.positions.fill_(context)
    state.max_frames.fill_(max_frames)
    state.end_at.fill_(NEVER)
    state.block_table.copy_(torch.arange(rows * pages).view(rows, pages))
    state.seeds.copy_(seed_words(range(rows)))
    floats, ints = warp_rows([SamplingParams(min_new_tokens=10**6)] * rows)
    state.warp_floats.copy_(floats)
    state.warp_ints.copy_(ints)
    state.done.fill_(RUNNING)
    return FrameLoop(weights, state, kv, EOS_ID, DEFAULT_LIMITS), torch.arange(rows, dtype=torch.int32, device="cuda")


def use_tiles(path: Path) -> None:
    """Put the tiles that `tune_small_batch.py` has written into the table."""
    for name, tiles in json.loads(path.read_text())["best"].items():
        if len(tiles) < len(ROW_BUCKETS):
            print(f"{name}: no tile for every number of rows")
            continue
        kind, width, depth = name.split()
        by_bucket = tuple(Tile(**tiles[str(rows)]) for rows in ROW_BUCKETS)
        small_batch_tiles.TILES[kind, int(width), int(depth)] = by_bucket


def timed_ms(run: Callable[[], object], repeats: int) -> float:
    """Median milliseconds by device events."""
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def graph_of(run: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """Warm up, then capture."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="1b7")
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 64, 256, 512, 1024])
    parser.add_argument("--context", type=int, default=120)
    parser.add_argument("--small-batch", type=int, nargs="+", default=[SMALL_BATCH])
    parser.add_argument("--tiles", type=Path, help="what tune_small_batch.py found best, instead of the table")
    parser.add_argument("--profile", default=None)
    args = parser.parse_args()
    if args.tiles:
        use_tiles(args.tiles)
    weights = PackedTalker.pack(build_talker(args.size), max_positions=8192)
    torch.cuda.empty_cache()
    table = []
    for rows, limit in ((rows, limit) for rows in args.rows for limit in args.small_batch):
        weights.talker.small_batch = weights.predictor.small_batch = limit
        loop, slots = build_state(weights, rows, args.context, max_frames=200)
        hidden = loop.state.hidden.clone()
        run_frame = partial(loop.run_frame, slots)
        eager_ms = timed_ms(run_frame, 4)
        graph = graph_of(run_frame)
        frame_ms = timed_ms(graph.replay, 30)
        predictor_ms = timed_ms(graph_of(partial(loop._choose_codes, slots, hidden)).replay, 20)
        table.append((rows, limit, eager_ms, frame_ms, predictor_ms, frame_ms - predictor_ms, rows * 80 / frame_ms))
        if args.profile and rows == args.rows[-1]:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                for _ in range(3):
                    graph.replay()
                torch.cuda.synchronize()
            text = profile.key_averages().table(sort_by="cuda_time_total", row_limit=40, max_name_column_width=90)
            with open(args.profile, "w") as file:
                file.write(text)
    print(f"{torch.cuda.get_device_name()}, {args.size}, context {args.context} + frames; milliseconds a frame")
    print(f"{'rows':>5} {'limit':>5} {'eager':>8} {'graph':>8} {'predictor':>10} {'talker':>8} {'audio_s_per_s':>14}")
    for row in table:
        rows, limit, eager, graph, predictor, talker, speed = row
        print(f"{rows:>5} {limit:>5} {eager:>8.2f} {graph:>8.2f} {predictor:>10.2f} {talker:>8.2f} {speed:>14.0f}")


if __name__ == "__main__":
    main()
