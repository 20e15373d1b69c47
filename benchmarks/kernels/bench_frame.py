"""Times one frame of runner v2 at a released shape with random weights: whole and in parts, eager and replayed.

    python -m benchmarks.kernels.bench_frame [--rows 64 256 512 1024] [--context 120] [--profile FILE]
    python -m benchmarks.kernels.bench_frame --rows 1 8 16 24 --small-batch 0 16

Prints milliseconds a frame and the audio seconds per second that they amount to, without prefill and Code2Wav.
--small-batch measures every frame once for each limit: the rows up to which the kernels of small_batch.py are used, at
most 16. `first_s` is the first frame at a shape, compilation included.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

import torch

from benchmarks.kernels.timing import capture, median_ms
from tts_batch.engine.kernels.small_batch import MOST_ROWS
from tts_batch.engine.loops import DEFAULT_LIMITS
from tts_batch.engine.noise import seed_words
from tts_batch.engine.request import SamplingParams
from tts_batch.engine.v2.frame_loop import FrameLoop
from tts_batch.engine.v2.packed import PackedTalker
from tts_batch.engine.v2.request_state import RUNNING, RequestState, StateShape, warp_rows
from tts_batch.engine.v2.runner import PAGE_SIZE
from tts_batch.model.config import CodePredictorConfig, TalkerConfig
from tts_batch.model.talker import Talker

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
    """A loop whose rows all run after a prompt of `context` tokens; none ends within `max_frames`."""
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
    state.block_table.copy_(torch.arange(rows * pages).view(rows, pages))
    state.seeds.copy_(seed_words(range(rows)))
    floats, ints = warp_rows([SamplingParams(min_new_tokens=10**6)] * rows)
    state.warp_floats.copy_(floats)
    state.warp_ints.copy_(ints)
    state.done.fill_(RUNNING)
    return FrameLoop(weights, state, kv, EOS_ID, DEFAULT_LIMITS), torch.arange(rows, dtype=torch.int32, device="cuda")


def measure(weights: PackedTalker, rows: int, context: int, profile: str | None = None) -> str:
    """A line of the table, from its third column on."""
    loop, slots = build_state(weights, rows, context, max_frames=200)
    hidden = loop.state.hidden.clone()
    run_frame = partial(loop.run_frame, slots)
    started_s = time.monotonic()
    run_frame()
    torch.cuda.synchronize()
    first_s = time.monotonic() - started_s
    eager_ms = median_ms(run_frame, 4)
    graph = capture(run_frame)
    frame_ms = median_ms(graph.replay, 30)
    predictor_ms = median_ms(capture(partial(loop._choose_codes, slots, hidden)).replay, 20)
    if profile:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
            for _ in range(3):
                graph.replay()
            torch.cuda.synchronize()
        text = profiled.key_averages().table(sort_by="cuda_time_total", row_limit=40, max_name_column_width=90)
        Path(profile).write_text(text)
    return (
        f"{first_s:>8.2f} {eager_ms:>8.2f} {frame_ms:>8.2f} {predictor_ms:>10.2f} "
        f"{frame_ms - predictor_ms:>8.2f} {rows * 80 / frame_ms:>14.0f}"
    )


HEADER = (
    f"{'rows':>5} {'limit':>5} {'first_s':>8} {'eager':>8} {'graph':>8} {'predictor':>10} {'talker':>8} "
    f"{'audio_s_per_s':>14}"
)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="1b7")
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 64, 256, 512, 1024])
    parser.add_argument("--context", type=int, default=120)
    limits = {"choices": range(MOST_ROWS + 1), "metavar": "N", "default": [MOST_ROWS]}
    parser.add_argument("--small-batch", type=int, nargs="+", **limits)
    parser.add_argument("--profile", default=None)
    args = parser.parse_args()
    weights = PackedTalker.pack(build_talker(args.size), max_positions=8192)
    torch.cuda.empty_cache()
    print(f"{torch.cuda.get_device_name()}, {args.size}, context {args.context} + frames; milliseconds a frame")
    print(HEADER)
    served = [stack for stack in (weights.talker, weights.predictor) if stack.small_batch]
    for rows, limit in ((rows, limit) for rows in args.rows for limit in args.small_batch):
        for stack in served:
            stack.small_batch = limit
        profile = args.profile if rows == args.rows[-1] else None
        print(f"{rows:>5} {limit:>5} {measure(weights, rows, args.context, profile)}", flush=True)


if __name__ == "__main__":
    main()
