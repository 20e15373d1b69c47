"""Checks and times the fast codec decoder on a CUDA device, at the released shape with random weights.

    python -m benchmarks.kernels.bench_code2wav [--tune] [--out FOLDER]

Errors against the exact decoder, then the whole decoder in CUDA graphs; with `--tune` also every convolution with
several tiles, and the decoder again with the best of them.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.kernels.timing import capture, median_ms
from benchmarks.kernels.tune_code2wav import Checks, relative_error, table, tune
from tts_batch.engine.code2wav.fast_decoder import FastCodecDecoder
from tts_batch.model.config import CodecDecoderConfig
from tts_batch.model.speech_tokenizer.decoder import CodecDecoder

RELEASED = CodecDecoderConfig(
    codebook_size=2048, codebook_dim=512, latent_dim=1024, hidden_size=512, intermediate_size=1024,
    num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=16, head_dim=64, sliding_window=72,
    rope_theta=1e4, rms_norm_eps=1e-5, num_quantizers=16, num_semantic_quantizers=1, decoder_dim=1536,
    upsampling_ratios=(2, 2), upsample_rates=(8, 5, 4, 3),
)  # fmt: skip
SHAPES = [(8, 100), (32, 100), (16, 325), (64, 60), (1, 100)]
GFLOP_PER_FRAME = 4.96
CHECKS_END_S = 52.0  # since the start; later checks are reported as failed
STARTED = time.monotonic()


def random_decoder() -> CodecDecoder:
    """A decoder of random tensors, scaled so that activations stay near 1."""
    torch.manual_seed(0)
    decoder = CodecDecoder(RELEASED).cuda()
    with torch.no_grad():
        for name, tensor in decoder.state_dict().items():
            noise = torch.randn_like(tensor)
            if name.endswith("cluster_usage"):
                tensor.copy_(1 + noise.abs())
            elif tensor.dim() > 1:
                tensor.copy_(noise / tensor[0].numel() ** 0.5 * (0.5 if name.startswith("decoder.") else 1))
            else:
                tensor.copy_(0.3 * noise + ("norm" in name or "scale" in name))
    return decoder.eval()


def random_codes(batch: int, frames: int) -> Tensor:
    return torch.randint(0, RELEASED.codebook_size, (batch, 16, frames), device="cuda")


def graph_us(run: Callable[[], object], calls: int = 5) -> float:
    """The median of one call, in microseconds, from a CUDA graph of several."""

    def run_all() -> None:
        for _ in range(calls):
            run()

    return 1000 * median_ms(capture(run_all).replay, 3) / calls


def time_decoder(fast: FastCodecDecoder, label: str) -> list[str]:
    lines = []
    for batch, frames in SHAPES:
        codes = random_codes(batch, frames)
        us = graph_us(lambda codes=codes: fast(codes), calls=1)
        per_s = batch * frames / us * 1e6
        lines.append(
            f"{label} ({batch:2d},{frames:3d}) {us / 1000:8.2f} ms  {per_s * 0.08:7.0f} audio-s/s"
            f"  {per_s * GFLOP_PER_FRAME / 1000:5.0f} TFLOP/s"
        )
    return lines


def profile(fast: FastCodecDecoder, out: Path) -> list[str]:
    """The device time of one forward by kernel; all kernels in order go to OUT/kernels.txt."""
    codes = random_codes(32, 100)
    fast(codes)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        fast(codes)
        torch.cuda.synchronize()
    events = sorted((e for e in trace.events() if e.device_time > 0), key=lambda e: e.time_range.start)
    (out / "kernels.txt").write_text("".join(f"{e.device_time:9.1f} us  {e.name[:100]}\n" for e in events))
    total: dict[str, list[float]] = defaultdict(list)
    for event in events:
        total[event.name[:60]].append(event.device_time)
    lines = sorted(total.items(), key=lambda item: -sum(item[1]))[:14]
    return [f"{sum(times):9.1f} us in {len(times):3d}  {name}" for name, times in lines]


def check(exact: CodecDecoder, fast: FastCodecDecoder, codes: Tensor) -> str:
    expected, audio = exact(codes), fast(codes)
    return f"error of fast bf16 {relative_error(audio, expected):.2e}, again {relative_error(fast(codes), audio):.1e}"


@torch.no_grad()
def main() -> None:
    """Print all results, the summary last."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tune", action="store_true", help="first find the best tile of every convolution")
    parser.add_argument(
        "--out", type=Path, default=Path("/tmp"), help="folder of kernels.txt, the kernels of a forward"
    )
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with Checks() if arguments.tune else nullcontext() as checks:
        exact = random_decoder()
        fast = FastCodecDecoder(exact)
        codes = random_codes(2, 40)
        log = [f"{torch.cuda.get_device_name()}; {check(exact, fast, codes)}"]
        log.append(f"sound: standard deviation {float(exact(codes).std()):.2f}")
        rounded = CodecDecoder(RELEASED).cuda().eval()
        rounded.load_state_dict(exact.state_dict())
        log.append(f"error of exact bf16 {relative_error(rounded.bfloat16()(codes), exact(codes)):.2e}")
        outcomes = checks.outcomes(CHECKS_END_S - (time.monotonic() - STARTED)) if checks else []
    log.append(f"checked {len(outcomes)} tiles by {time.monotonic() - STARTED:.0f} s")
    square = torch.randn(8192, 8192, device="cuda").bfloat16()
    log.append(f"cuBLAS {2 * 8192**3 / graph_us(lambda: square @ square) / 1e6:.0f} TFLOP/s")
    del rounded
    log += time_decoder(fast, "table")
    print("\n".join(log), flush=True)
    if arguments.tune:
        print("\n".join(tune(outcomes, graph_us)), flush=True)
        torch.cuda.empty_cache()
        log += ["", *table(), "", f"tuned: {check(exact, fast, codes)}", *time_decoder(fast, "tuned")]
    log += profile(fast, arguments.out)
    print("\n".join(["", *log, f"{time.monotonic() - STARTED:.0f} s in total"]))


if __name__ == "__main__":
    main()
