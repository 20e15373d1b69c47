"""The gain of each part of the engine: the default engine and one without that part, alternating in one process.

    python -m benchmarks.ablate --shape 1.7b [--rows N] [--rounds N] [--budget-s S] [--only NAME …] [--json FILE]

Each line gives audio seconds per second of both, and the ratio to the default's round just before: median, least and
most of all rounds. Results: benchmarks/log.md.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tts_batch.bench.engines import base_checkpoint, load_model, open_bench_engine, random_model
from tts_batch.bench.measure import Measurement, measure
from tts_batch.bench.table import describe_machine
from tts_batch.bench.workload import Workload
from tts_batch.engine.kernels.small_batch import MOST_ROWS
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.prepare import Preparer
from tts_batch.engine.request import EngineConfig, SpeechRequest
from tts_batch.model.qwen3_tts import Qwen3TTS

# Two engines share the device: KV pages enough for every row of a workload, and no more.
DEFAULT_OPTIONS = {"pages_per_row": "6", "kv_share": "0.35"}
VARIANT_OPTIONS = {"pages_per_row": "6"}


@dataclass(frozen=True, slots=True)
class Variant:
    """An engine that differs from the default in some settings."""

    name: str
    predicted: float  # estimated throughput as a share of the default's; the time budget relies on it
    settings: Mapping[str, Any] = field(default_factory=dict)  # of EngineConfig
    options: Mapping[str, str] = field(default_factory=dict)  # knobs of the profile
    share: float = 1.0  # of the workload's rows, where all would take too long
    is_cold: bool = False  # voices are encoded within the time measured

    def config(self, base: EngineConfig) -> EngineConfig:
        """The configuration of the variant's engine."""
        return replace(base, **self.settings, options={**VARIANT_OPTIONS, **self.options})

    def expected_s(self, open_s: float, default_s: float, rounds: int) -> float:
        """The seconds that `rounds` rounds of both engines take, if the default takes `default_s` for the workload."""
        return open_s + self.share * default_s * ((1 + rounds) / self.predicted + rounds)


# The last variant drops most voices of the default engine, so it must stay last.
VARIANTS = (
    Variant("v2-b2", 0.3, {"profile": "b2"}),
    Variant("v1-b2", 0.014, {"runner": "v1", "profile": "b2"}, share=64 / 1_088),  # as many as it decodes together
    Variant("no-graphs", 0.4, {"cuda_graph": False}),
    Variant("one-frame-a-visit", 0.97, options={"frames_per_visit": "1"}),
    Variant("short-windows", 1.0, options={"long_windows": "false"}),
    Variant("short-prefills", 0.66, options={"prefill_tokens": "512"}),
    Variant("all-codec-context", 0.78, options={"codec_skips_context": "false"}),
    Variant("exact-codec", 0.35, options={"fast_codec": "false"}),
    # As many of 1,088 rows as these kernels take.
    Variant("no-small-batch-kernels", 0.87, options={"small_batch_kernels": "false"}, share=MOST_ROWS / 1_088),
    Variant("one-stream", 0.96, options={"codec_stream": "false"}),
    Variant("small-code2wav", 0.8, options={"code2wav_pieces": "2", "code2wav_frames": "650"}),
    # The twin of prefill attention copies the pages of every token.
    Variant("eager", 0.1, {"eager": True}, {"prefill_tokens": "2048"}, share=0.25),
    Variant("single-references", 0.1, options={"references_together": "false"}, share=0.125, is_cold=True),
)


@dataclass(slots=True)
class VariantRounds:
    """The rounds of a variant: audio seconds per second of the default and of the variant, one number a round each."""

    variant: Variant
    num_rows: int
    default: list[float] = field(default_factory=list)
    changed: list[float] = field(default_factory=list)
    is_complete: bool = True  # every clip had exactly its frames, all samples finite
    problem: str | None = None  # why rounds are missing

    @property
    def ratios(self) -> list[float]:
        """The variant's throughput as a share of the default's just before it."""
        return [changed / default for default, changed in zip(self.default, self.changed, strict=True) if default]

    def as_dict(self) -> dict[str, object]:
        variant, ratios = self.variant, self.ratios
        return {
            "name": variant.name,
            "settings": {**variant.settings, **variant.options},
            "num_rows": self.num_rows,
            "is_cold": variant.is_cold,
            "default_audio_s_per_s": self.default,
            "audio_s_per_s": self.changed,
            "ratio": median(ratios) if ratios else None,
            "ratio_min": min(ratios, default=None),
            "ratio_max": max(ratios, default=None),
            "predicted_ratio": variant.predicted,
            "is_complete": self.is_complete,
            "problem": self.problem,
        }


def v2_over_v1(comparisons: Sequence[VariantRounds]) -> float | None:
    """The speed-up of runner v2 over runner v1, both with profile b2; None when either was not measured."""
    measured = {c.variant.name: median(c.changed) for c in comparisons if c.changed}
    v1 = measured.get("v1-b2")
    return measured["v2-b2"] / v1 if v1 and "v2-b2" in measured else None


@dataclass(slots=True)
class Contender:
    """An open engine and its preparer."""

    engine: NativeEngine
    preparer: Preparer

    def run(self, requests: Sequence[SpeechRequest], *, is_cold: bool = False) -> Measurement:
        if is_cold:
            self.preparer.forget_references()
        return measure(self.engine, requests, None)


def ablate(
    model: Qwen3TTS,
    base: EngineConfig,
    workload: Workload,
    rounds: int,
    time_left_s: Callable[[], float],
    variants: Sequence[Variant] = VARIANTS,
) -> Iterator[VariantRounds]:
    """Compare the variants with the default for `rounds` rounds each; skip one that does not fit into the time left.

    Raises EngineError when the default engine cannot run.
    """
    requests = workload.requests(lambda text: len(model.text_tokenizer.encode(text)))
    default, _ = open_contender(model, replace(base, options=DEFAULT_OPTIONS))
    open_s = 0.0  # of the last variant: the first engine compiles for all
    try:
        default.run(requests)
        default_s = default.run(requests).wall_s
        for variant in variants:
            comparison = VariantRounds(variant, max(1, round(variant.share * len(requests))))
            if time_left_s() < variant.expected_s(open_s, default_s, rounds):
                comparison.problem = "skipped: no time left"
            else:
                try:
                    other, open_s = open_contender(model, variant.config(base))
                    _compare(comparison, default, other, requests[: comparison.num_rows], rounds, time_left_s)
                    del other
                except Exception as error:  # the other variants can still be measured
                    comparison.problem = f"{type(error).__name__}: {error}"
                _free_memory()
            yield comparison
    finally:
        default.engine.close()


def open_contender(model: Qwen3TTS, config: EngineConfig) -> tuple[Contender, float]:
    """An open engine, and the seconds that opening it took."""
    started_s = time.monotonic()
    contender = Contender(*open_bench_engine(model, config))
    return contender, time.monotonic() - started_s


def _compare(
    comparison: VariantRounds,
    default: Contender,
    other: Contender,
    requests: Sequence[SpeechRequest],
    rounds: int,
    time_left_s: Callable[[], float],
) -> None:
    """Alternate rounds of both engines, then close the other."""
    is_cold = comparison.variant.is_cold
    try:
        pair_s = other.run(requests).wall_s  # the first pass is the slowest: an upper bound for a pair
        for done in range(rounds):
            if time_left_s() < pair_s:
                comparison.problem = f"{done} of {rounds} rounds: no time left"
                break
            pair = [contender.run(requests, is_cold=is_cold) for contender in (default, other)]
            comparison.default.append(pair[0].audio_s_per_s)
            comparison.changed.append(pair[1].audio_s_per_s)
            comparison.is_complete &= all(measured.completed == measured.attempted for measured in pair)
            pair_s = sum(measured.wall_s for measured in pair)
    finally:
        other.engine.close()


def _free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


TABLE_HEAD = f"{'engine':32} rows  default audio_s/s        share of the default  predicted"


def table_line(found: dict[str, Any]) -> str:
    """The line of a variant in the columns of TABLE_HEAD, with its problem if it has one."""
    line = f"{found['name']:32} {found['num_rows']:>4}"
    if found["ratio"] is not None:
        share = f"{found['ratio']:.3f} ({found['ratio_min']:.3f} to {found['ratio_max']:.3f})"
        line += f" {median(found['default_audio_s_per_s']):>8.1f} {median(found['audio_s_per_s']):>8.1f}  {share:>27}"
        line += f"  {found['predicted_ratio']:>9.2f}"
    if not found["is_complete"]:
        line += "  INCOMPLETE CLIPS"
    return f"{line}  {found['problem']}" if found["problem"] else line


def main() -> None:
    """Print a line for each variant; exit with 1 if one has missing rounds or incomplete clips."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=["1.7b", "0.6b"], help="a released shape with random weights")
    parser.add_argument("--model", help="or a Base checkpoint: folder, hub id or tiny-random")
    parser.add_argument("--rows", type=int, default=1_088)
    parser.add_argument("--references", type=int, default=666)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--budget-s", type=float, default=540.0, help="time limit; what does not fit is skipped")
    parser.add_argument("--only", action="append", default=[], choices=[variant.name for variant in VARIANTS])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if (args.shape is None) == (args.model is None):
        parser.error("give either --shape or --model")
    until_s = time.monotonic() + args.budget_s
    config = EngineConfig(
        model=base_checkpoint(args.model) if args.model else "", runner="v2", device=args.device, dtype=args.dtype
    )
    variants = [variant for variant in VARIANTS if not args.only or variant.name in args.only]
    report: dict[str, Any] = {"machine": describe_machine(), "rows": args.rows, "rounds": args.rounds, "variants": []}
    print(", ".join(f"{name} {value}" for name, value in report["machine"].items()))
    print(TABLE_HEAD)
    network = random_model(args.shape, config) if args.shape else load_model(config)
    workload = Workload("seed-tts", args.rows, args.references)
    measured: list[VariantRounds] = []
    for found in ablate(network, config, workload, args.rounds, lambda: until_s - time.monotonic(), variants):
        measured.append(found)
        report["variants"].append(found.as_dict())
        report["v2_b2_over_v1_b2"] = v2_over_v1(measured)
        print(table_line(report["variants"][-1]), flush=True)
        if args.json:  # after each variant, so that a failure loses nothing
            args.json.write_text(json.dumps(report, indent=1))
    if (times := report.get("v2_b2_over_v1_b2")) is not None:
        print(f"v2-b2 is {times:.2f} times as fast as v1-b2")
    sys.exit(any(found.problem or not found.is_complete for found in measured))


if __name__ == "__main__":
    main()
