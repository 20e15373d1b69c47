"""Where the device's time goes while an engine works: kernel by kernel, summed by name.

    python -m benchmarks.kernel_time [--shape 1.7b] [--rows 4352] [--top 40]

The rows are those of `tts-batch bench`, with voices encoded before. Profiling slows the host down: read shares and sums
per row and frame here, and rates from `bench`.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict

import torch
from torch.profiler import ProfilerActivity, profile

from tts_batch.bench.engines import encode_references, open_bench_engine, random_model
from tts_batch.bench.measure import measure
from tts_batch.bench.workload import Workload
from tts_batch.engine.request import EngineConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_352)
    parser.add_argument("--shape", default="1.7b")
    parser.add_argument("--top", type=int, default=40)
    args = parser.parse_args()
    config = EngineConfig(model="", runner="v2", device="cuda")
    model = random_model(args.shape, config)
    engine, preparer = open_bench_engine(model, config)
    requests = Workload("seed-tts", args.rows).requests(lambda text: len(model.text_tokenizer.encode(text)))
    measure(engine, requests[:1_088], None)
    encode_references(preparer, requests)
    plain = measure(engine, requests, None)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        measured = measure(engine, requests, None)
        torch.cuda.synchronize()
    engine.close()
    num_frames = sum(request.max_frames for request in requests)
    times_us: defaultdict[str, float] = defaultdict(float)
    calls: defaultdict[str, int] = defaultdict(int)
    spans: list[tuple[float, float]] = []
    for event in profiler.events():
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        name = re.sub(r"[<(].*", "", event.name)[:70]
        times_us[name] += event.time_range.elapsed_us()
        calls[name] += 1
        spans.append((event.time_range.start, event.time_range.end))
    busy_us, end_us = 0.0, float("-inf")
    for start_us, stop_us in sorted(spans):
        busy_us += max(0.0, stop_us - max(start_us, end_us))
        end_us = max(end_us, stop_us)
    print(
        f"{len(requests)} rows of {num_frames} frames: {plain.wall_s:.2f} s ({plain.audio_s_per_s:,.0f} audio-s/s), "
        f"profiled {measured.wall_s:.2f} s; device busy {busy_us / 1e6:.2f} s, all kernels "
        f"{sum(times_us.values()) / 1e6:.2f} s"
    )
    for name, total_us in sorted(times_us.items(), key=lambda item: -item[1])[: args.top]:
        print(f"{total_us / 1e6:8.3f} s {total_us / num_frames:7.3f} us a frame of a row {calls[name]:>9} x  {name}")


if __name__ == "__main__":
    main()
