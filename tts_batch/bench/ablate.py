"""What each part of the engine is worth: the default engine against one without it, turn by turn, in one process."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch

from tts_batch.bench.engines import ForcedEndPreparer, open_bench_engine
from tts_batch.bench.measure import Measurement, measure
from tts_batch.bench.workload import BenchRow, Workload
from tts_batch.engine.kernels.small_batch import MOST_ROWS
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.request import EngineConfig
from tts_batch.model.qwen3_tts import Qwen3TTS

# Two engines share the device: KV pages enough for every row of a workload, and no more.
DEFAULT_OPTIONS = {"pages_per_row": "6", "kv_share": "0.35"}
VARIANT_OPTIONS = {"pages_per_row": "6"}


@dataclass(frozen=True, slots=True)
class Variant:
    """A way in which an engine can differ from the default."""

    name: str
    predicted: float  # its throughput as a share of the default's: a guess, which also says how long it will take
    settings: Mapping[str, Any] = field(default_factory=dict)  # of EngineConfig
    options: Mapping[str, str] = field(default_factory=dict)  # knobs of the profile
    share: float = 1.0  # of the workload's rows, where all of them would take too long
    is_cold: bool = False  # every voice is encoded within the time measured

    def config(self, base: EngineConfig) -> EngineConfig:
        """The engine to open."""
        return replace(base, **self.settings, options={**VARIANT_OPTIONS, **self.options})

    def expected_s(self, open_s: float, default_s: float, rounds: int) -> float:
        """How long all of it will take, when the default takes `default_s` for the whole workload."""
        return open_s + self.share * default_s * ((1 + rounds) / self.predicted + rounds)


# The last one leaves the default engine without most of its voices, so that nothing may come after it.
VARIANTS = (
    Variant("v2-b2", 0.3, {"profile": "b2"}),
    Variant("v1-b2", 0.014, {"runner": "v1", "profile": "b2"}, share=64 / 1_088),  # as many as it decodes together
    Variant("no-graphs", 0.4, {"cuda_graph": False}),
    Variant("one-frame-a-visit", 0.97, options={"frames_per_visit": "1"}),
    Variant("short-windows", 1.0, options={"long_windows": "false"}),
    Variant("short-prefills", 0.66, options={"prefill_tokens": "512"}),
    Variant("all-codec-context", 0.78, options={"codec_skips_context": "false"}),
    Variant("exact-codec", 0.35, options={"fast_codec": "false"}),
    # Of 1,088 rows, as many as these kernels take.
    Variant("no-small-batch-kernels", 0.87, options={"small_batch_kernels": "false"}, share=MOST_ROWS / 1_088),
    Variant("one-stream", 0.96, options={"codec_stream": "false"}),
    Variant("small-code2wav", 0.8, options={"code2wav_pieces": "2", "code2wav_frames": "650"}),
    # The twin of prefill attention copies the pages of every token.
    Variant("eager", 0.1, {"eager": True}, {"prefill_tokens": "2048"}, share=0.25),
    Variant("single-references", 0.1, options={"references_together": "false"}, share=0.125, is_cold=True),
)


@dataclass(slots=True)
class Comparison:
    """How a variant did. Audio seconds a second, one number a round, the default's and the variant's in turn."""

    variant: Variant
    num_rows: int
    default: list[float] = field(default_factory=list)
    changed: list[float] = field(default_factory=list)
    is_complete: bool = True  # every clip had its frames and was finite
    problem: str | None = None  # why there is no number, or not every round

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


def v2_over_v1(comparisons: Sequence[Comparison]) -> float | None:
    """How many times as fast runner v2 is as runner v1 where both decode profile b2's rows; None: not measured."""
    measured = {c.variant.name: median(c.changed) for c in comparisons if c.changed}
    v1 = measured.get("v1-b2")
    return measured["v2-b2"] / v1 if v1 and "v2-b2" in measured else None


@dataclass(slots=True)
class _Contender:
    """An open engine."""

    engine: NativeEngine
    preparer: ForcedEndPreparer

    def run(self, rows: Sequence[BenchRow], *, is_cold: bool = False) -> Measurement:
        if is_cold:
            self.preparer.forget_references()
        return measure(self.engine, self.preparer, rows, None)


def ablate(
    model: Qwen3TTS,
    base: EngineConfig,
    workload: Workload,
    rounds: int,
    time_left_s: Callable[[], float],
    variants: Sequence[Variant] = VARIANTS,
) -> Iterator[Comparison]:
    """Compare the variants with the default, each for `rounds` turns; one that does not fit into the time is left out.

    Raises EngineError when the default engine cannot run.
    """
    rows = workload.rows(lambda text: len(model.text_tokenizer.encode(text)))
    default, _ = _open(model, replace(base, options=DEFAULT_OPTIONS))
    open_s = 0.0  # of the last variant: most of what the first engine took it compiled for all of them
    try:
        default.run(rows)
        default_s = default.run(rows).wall_s
        for variant in variants:
            comparison = Comparison(variant, max(1, round(variant.share * len(rows))))
            if time_left_s() < variant.expected_s(open_s, default_s, rounds):
                comparison.problem = "left out: no time"
            else:
                try:
                    other, open_s = _open(model, variant.config(base))
                    _compare(comparison, default, other, rows[: comparison.num_rows], rounds, time_left_s)
                    del other
                except Exception as error:  # the other variants can still be measured
                    comparison.problem = f"{type(error).__name__}: {error}"
                _free_memory()
            yield comparison
    finally:
        default.engine.close()


def _open(model: Qwen3TTS, config: EngineConfig) -> tuple[_Contender, float]:
    """An engine, and how many seconds it took."""
    started_s = time.monotonic()
    contender = _Contender(*open_bench_engine(model, config))
    return contender, time.monotonic() - started_s


def _compare(
    comparison: Comparison,
    default: _Contender,
    other: _Contender,
    rows: Sequence[BenchRow],
    rounds: int,
    time_left_s: Callable[[], float],
) -> None:
    """Let both run in turns, and close the other."""
    is_cold = comparison.variant.is_cold
    try:
        pair_s = other.run(rows).wall_s  # the first pass is the slowest, and the default's of the pair the shortest
        for done in range(rounds):
            if time_left_s() < pair_s:
                comparison.problem = f"{done} of {rounds} rounds: no time"
                break
            pair = [contender.run(rows, is_cold=is_cold) for contender in (default, other)]
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
