"""The ablation: each variant changes only what it names, rounds are compared in pairs, failures are reported."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from benchmarks.ablate import (
    DEFAULT_OPTIONS,
    TABLE_HEAD,
    VARIANTS,
    Variant,
    VariantRounds,
    ablate,
    open_contender,
    table_line,
    v2_over_v1,
)
from tts_batch.bench import workload
from tts_batch.bench.workload import Workload, with_length
from tts_batch.engine.devices import Platform
from tts_batch.engine.profiles import resolve_profile
from tts_batch.engine.request import EngineConfig
from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.tiny import build_tiny

BASE = EngineConfig(model="", runner="v2", device="cpu")
ON_CUDA = Platform(torch.device("cuda"), torch.bfloat16, "v2")
OPEN_S, DEFAULT_S = 10.0, 3.5  # on an H200


def knobs(config: EngineConfig) -> dict[str, object]:
    """Everything that an engine on CUDA would take from a configuration."""
    _, profile = resolve_profile(config, ON_CUDA)
    fields = asdict(profile) | {name: getattr(config, name) for name in ("runner", "cuda_graph", "eager", "profile")}
    del fields["kv_share"]  # the share of memory: the number of pages is the same
    return fields


def test_a_variant_differs_in_what_it_names_only() -> None:
    default = knobs(replace(BASE, options=DEFAULT_OPTIONS))
    for variant in VARIANTS:
        changed = {name for name, value in knobs(variant.config(BASE)).items() if value != default[name]}
        assert changed, variant.name
        if "profile" not in variant.settings:
            assert changed == variant.settings.keys() | variant.options.keys(), variant.name


def test_all_variants_fit_into_the_default_budget() -> None:
    expected_s = 60 + sum(variant.expected_s(OPEN_S, DEFAULT_S, rounds=2) for variant in VARIANTS)
    assert expected_s < 540


def test_names_are_unique_and_the_cold_one_is_last() -> None:
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS)
    assert [variant.is_cold for variant in VARIANTS] == [False] * (len(VARIANTS) - 1) + [True]


@pytest.fixture(scope="module")
def model() -> Qwen3TTS:
    return Qwen3TTS.load(resolve_checkpoint(str(build_tiny("tiny-random", "base"))), "cpu", torch.float32)


def test_every_switch_is_turned_off_by_a_variant() -> None:
    _, profile = resolve_profile(BASE, ON_CUDA)
    switches = {name for name, value in asdict(profile).items() if value is True}
    switches -= {"codec_graphs"}  # of chunks: the variants make whole clips
    assert switches == {name for variant in VARIANTS for name, value in variant.options.items() if value == "false"}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_every_variant_makes_clips(variant: Variant, model: Qwen3TTS, tmp_path: Path) -> None:
    requests = [with_length(request, 2) for request in Workload("seed-tts", 2, 1).requests(len)]
    contender, _ = open_contender(model, variant.config(replace(BASE, cache_dir=str(tmp_path))))
    try:
        measured = contender.run(requests, is_cold=variant.is_cold)
    finally:
        contender.engine.close()
    assert (measured.completed, measured.finish_reasons) == (2, {"length": 2})


def test_a_variant_that_fails_does_not_end_the_others(
    model: Qwen3TTS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "MIN_FRAMES", 2)
    monkeypatch.setattr(workload, "MAX_FRAMES", 2)
    broken = Variant("broken", 1.0, {"profile": "b3"})
    good = Variant("good", 1.0, options={"frames_per_visit": "1"})
    base = replace(BASE, cache_dir=str(tmp_path))
    failed, compared = ablate(model, base, Workload("seed-tts", 2, 1), 1, lambda: 60.0, [broken, good])
    assert (failed.ratios, failed.problem) == (
        [],
        "EngineConfigError: profile 'b3' is not one of basic, b2, b4, throughput.",
    )
    assert (len(compared.ratios), compared.is_complete, compared.problem) == (1, True, None)


def test_a_ratio_is_the_median_of_its_rounds() -> None:
    found = VariantRounds(VARIANTS[0], 8, default=[100.0, 200.0, 100.0], changed=[50.0, 90.0, 60.0]).as_dict()
    assert (found["ratio"], found["ratio_min"], found["ratio_max"]) == (0.5, 0.45, 0.6)
    line = table_line(found)
    predicted = f"{VARIANTS[0].predicted:.2f}"
    assert line.split() == ["v2-b2", "8", "100.0", "60.0", "0.500", "(0.450", "to", "0.600)", predicted]
    assert len(line) == len(TABLE_HEAD)


def test_v2_over_v1_needs_both() -> None:
    by_name = {variant.name: variant for variant in VARIANTS}
    v2 = VariantRounds(by_name["v2-b2"], 8, default=[9.0] * 3, changed=[600.0, 630.0, 660.0])
    v1 = VariantRounds(by_name["v1-b2"], 2, default=[9.0], changed=[63.0])
    assert v2_over_v1([v2, v1]) == 10.0
    assert v2_over_v1([v2, VariantRounds(by_name["v1-b2"], 2)]) is None
    assert v2_over_v1([v1]) is None


def test_a_line_names_its_problem() -> None:
    found = VariantRounds(VARIANTS[0], 8, is_complete=False, problem="skipped: no time left").as_dict()
    assert table_line(found).endswith("8  INCOMPLETE CLIPS  skipped: no time left")
