"""Checks and times the fast codec decoder on a CUDA device: `python benchmarks/kernels/bench_code2wav.py [out folder]`.

The released shape with random weights: errors against the exact decoder, every convolution with several tiles, then
the whole decoder in CUDA graphs, once with the tiles of the table and once with the best ones found here.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from tts_batch.engine.code2wav_fast import FastCodecDecoder  # noqa: E402
from tts_batch.engine.kernels import causal_conv as kernels  # noqa: E402
from tts_batch.engine.kernels.causal_conv import Conv, Tile, causal_conv, snake_unit  # noqa: E402
from tts_batch.model.config import CodecDecoderConfig  # noqa: E402
from tts_batch.model.speech_tokenizer.decoder import CodecDecoder  # noqa: E402

RELEASED = CodecDecoderConfig(
    codebook_size=2048, codebook_dim=512, latent_dim=1024, hidden_size=512, intermediate_size=1024,
    num_hidden_layers=8, num_attention_heads=16, num_key_value_heads=16, head_dim=64, sliding_window=72,
    rope_theta=1e4, rms_norm_eps=1e-5, num_quantizers=16, num_semantic_quantizers=1, decoder_dim=1536,
    upsampling_ratios=(2, 2), upsample_rates=(8, 5, 4, 3),
)  # fmt: skip
FRAMES = 800  # of the single layers: 8 sequences of 100
SHAPES = [(8, 100), (32, 100), (16, 325), (64, 60), (1, 100)]
GFLOP_PER_FRAME = 4.96
SWEEP_ENDS_S = 65.0
STARTED = time.monotonic()


def random_decoder() -> CodecDecoder:
    """Every tensor random, scaled so that activations stay near 1."""
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


def error(result: Tensor, expected: Tensor) -> float:
    return float((result.double() - expected.double()).norm() / expected.double().norm())


def graph_us(run: Callable[[], object], calls: int = 5, replays: int = 3) -> float:
    """Median microseconds of a call, from a CUDA graph of several."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    graph.replay()
    times = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000 / calls)
    return sorted(times)[len(times) // 2]


@dataclass
class Case:
    """One kernel call of the decoder at FRAMES frames."""

    name: str
    key: object  # of the tile in the table
    count: int  # how often the decoder makes it, counting all dilations as one
    flop: float
    run: Callable[[Tile | None], tuple[Tensor | None, ...]]
    check: Callable[[], tuple[Tensor | None, ...]]
    tiles: list[Tile]
    run_once: Callable[[Tile | None], tuple[Tensor | None, ...]] | None = None  # where `run` works in place


def conv_case(name: str, conv: Conv, rows: int, count: int, tiles: list[Tile], **options: object) -> Case:
    c_in, c_out = conv.weight.shape[0] // conv.taps, conv.weight.shape[1]
    x = torch.randn(8, rows // 8, c_in, device="cuda").bfloat16()
    snake, keep = options.get("snake"), options.get("keep", True)
    residual = torch.randn(8, rows // 8, c_out, device="cuda").bfloat16() if options.get("residual") else None
    wide = Conv(conv.weight.float(), conv.bias, conv.taps, conv.dilation)
    return Case(
        name, (c_in, c_out, conv.taps), count, 2.0 * rows * conv.taps * c_in * c_out,
        lambda tile: causal_conv(x, conv, residual=residual, snake=snake, keep=keep, tile=tile),
        lambda: kernels._twin(x.float(), wide, residual, snake, keep, torch.float32),
        tiles,
    )  # fmt: skip


def unit_case(name: str, unit: object, rows: int, tiles: list[Tile]) -> Case:
    width = unit.wide.weight.shape[1]
    x, snaked = (torch.randn(8, rows // 8, width, device="cuda").bfloat16() for _ in range(2))
    scratch = x.clone()

    def run(tile: Tile | None, x: Tensor = scratch) -> tuple[Tensor | None, ...]:
        return snake_unit(x, snaked, unit.wide, unit.inner, unit.point, unit.outer, tile=tile)

    def check() -> tuple[Tensor | None, ...]:
        wide, point = (Conv(c.weight.float(), c.bias, c.taps, c.dilation) for c in (unit.wide, unit.point))
        _, middle = kernels._twin(snaked.float(), wide, None, unit.inner, False, torch.float32)
        return kernels._twin(middle, point, x, unit.outer, True, torch.float32)

    flop = 2.0 * rows * 8 * width * width
    return Case(name, width, 3, flop, run, check, tiles, lambda tile: run(tile, x.clone()))


def cases(fast: FastCodecDecoder) -> list[Case]:
    """The decoder's kernel calls. The snake flags are those of the decoder: what is written counts."""
    big = [
        Tile(128, 128, num_warps=4), Tile(128, 128, num_warps=8), Tile(128, 128, num_warps=8, num_stages=4),
        Tile(128, 256), Tile(128, 256, num_stages=4), Tile(256, 128), Tile(256, 128, num_stages=4),
    ]  # fmt: skip
    thirds = [Tile(128, 128, 64), Tile(128, 128, 64, num_stages=4)]
    b1, b2, b3, b4 = fast.blocks
    snake = {"snake": fast.snakes[0], "keep": False}

    def wide(block: object) -> dict[str, object]:
        return {"snake": block.units[1].inner, "keep": False}

    def point(block: object) -> dict[str, object]:
        return {"snake": block.units[1].outer, "residual": True}

    return [
        conv_case("upsample", fast.upsample[1].up, 2 * FRAMES, 2, big),
        conv_case("narrow", fast.upsample[1].narrow, 4 * FRAMES, 2, big, residual=True),
        conv_case("first", fast.first, 4 * FRAMES, 1, big + thirds, **snake),
        conv_case("up1", b1.up, 4 * FRAMES, 1, big + thirds, snake=b1.enter),
        conv_case("wide768", b1.units[1].wide, 32 * FRAMES, 3, big + thirds, **wide(b1)),
        conv_case("point768", b1.units[1].point, 32 * FRAMES, 3, big + thirds, **point(b1)),
        conv_case("up2", b2.up, 32 * FRAMES, 1, [t for t in big if t.cols == 128] + thirds, snake=b2.enter),
        conv_case("wide384", b2.units[1].wide, 160 * FRAMES, 3, [t for t in big if t.cols == 128] + thirds, **wide(b2)),
        conv_case(
            "point384", b2.units[1].point, 160 * FRAMES, 3, [t for t in big if t.cols == 128] + thirds, **point(b2)
        ),
        conv_case("up3", b3.up, 160 * FRAMES, 1, big + thirds, snake=b3.enter),
        unit_case("unit192", b3.units[1], 640 * FRAMES, [*thirds, Tile(64, 128, 64, num_warps=4)]),
        conv_case(
            "up4", b4.up, 640 * FRAMES, 1,
            [Tile(128, 64, 32, num_warps=4), Tile(128, 64, 32), Tile(128, 256, 32), Tile(256, 64, 32)], snake=b4.enter,
        ),
        unit_case(
            "unit96", b4.units[1], 1920 * FRAMES,
            [
                Tile(128, 64, 32, 32, 4, 3), Tile(128, 64, 32, 32, 4, 4), Tile(128, 64, 32, 32, 4, 5),
                Tile(256, 64, 32, 32, 8, 3), Tile(256, 64, 32, 32, 8, 4), Tile(64, 64, 32, 32, 4, 4),
            ],
        ),
        conv_case(
            "last", fast.last, 120 * FRAMES, 1,
            [
                Tile(128, 16, num_warps=4), Tile(128, 16, num_warps=4, num_stages=5),
                Tile(64, 16, num_warps=4, num_stages=5), Tile(128, 16, depth=128, num_warps=4),
                Tile(256, 16, num_warps=8, num_stages=4),
            ],
        ),
    ]  # fmt: skip


def sweep(all_cases: list[Case], report: list[str]) -> dict[str, tuple[float, Tile]]:
    """Compile all tiles at once, check and time each, and keep the fastest of those that are right."""
    jobs = [(case, tile) for case in all_cases for tile in case.tiles]

    def compile_one(job: tuple[Case, Tile]) -> str:
        try:
            job[0].run(job[1])
        except Exception as exception:  # a tile may need more shared memory than there is
            return f"{type(exception).__name__}: {str(exception)[:120]}"
        return ""

    with ThreadPoolExecutor(12) as pool:
        failures = list(pool.map(compile_one, jobs))
    torch.cuda.synchronize()
    report.append(f"compiled {len(jobs)} kernels by {time.monotonic() - STARTED:.0f} s")
    best: dict[str, tuple[float, Tile]] = {}
    expected: dict[str, tuple[Tensor | None, ...]] = {}
    for (case, tile), failure in zip(jobs, failures, strict=True):
        if time.monotonic() - STARTED > SWEEP_ENDS_S:
            report.append(f"no time for {case.name} {tile}")
            continue
        if failure and (failure := compile_one((case, tile))):
            report.append(f"FAILED {case.name} {tile}: {failure}")
            continue
        if case.name not in expected:
            expected = {case.name: case.check()}
        results = (case.run_once or case.run)(tile)
        errors = [error(r, e) for r, e in zip(results, expected[case.name], strict=True) if r is not None]
        us = graph_us(lambda case=case, tile=tile: case.run(tile))
        right = all(e < 5e-3 for e in errors)  # false for NaN
        report.append(
            f"{case.name:9s} {us:8.1f} us {case.flop / us / 1e6:4.0f} TFLOP/s err {max(errors):.1e}  {_short(tile)}"
            + ("" if right else "  WRONG")
        )
        if right and us < best.get(case.name, (1e30, tile))[0]:
            best[case.name] = (us, tile)
    return best


def _short(tile: Tile) -> str:
    return f"{tile.rows}x{tile.cols}+{tile.more_cols}x{tile.depth} w{tile.num_warps} s{tile.num_stages}"


def time_decoder(fast: FastCodecDecoder, label: str, report: list[str]) -> None:
    for batch, frames in SHAPES:
        codes = random_codes(batch, frames)
        us = graph_us(lambda codes=codes: fast(codes), calls=1)
        per_s = batch * frames / us * 1e6
        report.append(
            f"{label} ({batch:2d},{frames:3d}) {us / 1000:8.2f} ms  {per_s * 0.08:7.0f} audio-s/s"
            f"  {per_s * GFLOP_PER_FRAME / 1000:5.0f} TFLOP/s"
        )


def profile(fast: FastCodecDecoder, out: Path) -> list[str]:
    """Device time of one forward by kernel, and every kernel in order in a file."""
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


def unfused(fast: FastCodecDecoder, report: list[str]) -> None:
    """The residual units of the narrow blocks as two kernels, for comparison."""
    for block, rows in ((fast.blocks[2], 640 * FRAMES), (fast.blocks[3], 1920 * FRAMES)):
        unit, width = block.units[1], block.width
        x, snaked = (torch.randn(8, rows // 8, width, device="cuda").bfloat16() for _ in range(2))
        tile = kernels.UNIT_TILES.pop(width)
        us = graph_us(lambda u=unit, x=x, s=snaked: snake_unit(x, s, u.wide, u.inner, u.point, u.outer))
        kernels.UNIT_TILES[width] = tile
        report.append(f"unit{width} as two kernels: {us:.1f} us")


@torch.no_grad()
def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("/tmp")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    log: list[str] = []
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    log.append(f"{torch.cuda.get_device_name()}, cuBLAS {2 * 8192**3 / graph_us(lambda: a @ b) / 1e6:.0f} TFLOP/s")
    exact = random_decoder()
    fast = FastCodecDecoder(exact)
    codes = random_codes(2, 40)
    expected = exact(codes)
    audio = fast(codes)
    torch.cuda.synchronize()
    log.append(f"sound: std {float(expected.std()):.2f}; first call done at {time.monotonic() - STARTED:.0f} s")
    log.append(f"error of fast bf16 {error(audio, expected):.2e}, again {error(fast(codes), audio):.1e}")
    rounded = CodecDecoder(RELEASED).cuda().eval()
    rounded.load_state_dict(exact.state_dict())
    log.append(f"error of exact bf16 {error(rounded.bfloat16()(codes), expected):.2e}")
    del exact, rounded
    print("\n".join(log), flush=True)

    details: list[str] = []
    table: list[str] = []
    for step in (lambda: time_decoder(fast, "table", table), lambda: unfused(fast, table)):
        try:
            step()
        except Exception as exception:
            table.append(f"FAILED {type(exception).__name__}: {str(exception)[:200]}")
    print("\n".join(table), flush=True)
    all_cases = cases(fast)
    best = sweep(all_cases, details)
    (out / "sweep.txt").write_text("\n".join(details))
    print("\n".join(details), flush=True)
    summary: list[str] = []
    for case in all_cases:
        if case.name in best:
            us, tile = best[case.name]
            target = kernels.UNIT_TILES if isinstance(case.key, int) else kernels.TILES
            target[case.key] = tile
            summary.append(
                f"{case.name:9s} x{case.count} {us:8.1f} us {case.flop / us / 1e6:5.0f} TFLOP/s"
                f" {us * case.count / FRAMES:6.2f} us/frame  {_short(tile)}"
            )
    time_decoder(fast, "tuned", summary)
    summary += profile(fast, out)
    print("\n".join(["", *log, *table, *summary, f"{time.monotonic() - STARTED:.0f} s in all"]))


if __name__ == "__main__":
    main()
