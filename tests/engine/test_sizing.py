"""What is chosen for cards of 6 to 192 GB, for the shapes of both released sizes."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise

import pytest

from tts_batch.engine.sizing import (
    GIB,
    LEAST_FRAMES,
    MIB,
    REFERENCE_BYTES_PER_S,
    Costs,
    Limits,
    Sizes,
    costs_of,
    fit,
    least_bytes,
    too_small,
)  # fmt: skip
from tts_batch.model.config import CodecConfig, ModelConfig

LIMITS = Limits(max_num_seqs=2048, num_pages=32_768, code2wav_frames=5200, prefill_tokens=8192, kv_share=0.6)


def released_costs(name: str) -> Costs:
    """In bfloat16, for budgets of up to 8,192 frames."""
    folder = files("tts_batch.model") / "released"
    config = ModelConfig.from_json(json.loads((folder / f"{name}.json").read_text()))
    codec = CodecConfig.from_json(json.loads((folder / "speech_tokenizer.json").read_text()))
    return costs_of(config.talker, codec.decoder, 2, 8_192)


COSTS = {"1.7b": released_costs("base_1b7"), "0.6b": released_costs("base_0b6")}
WEIGHTS_GIB = {"1.7b": 4.2, "0.6b": 2.3}  # packed, with the codec and the libraries
CARDS_GIB = (7.2, 11.2, 15, 23, 31, 47, 78.5, 139, 178)


def sizes_on(card_gib: float, shape: str, limits: Limits = LIMITS) -> Sizes | None:
    return fit((card_gib - WEIGHTS_GIB[shape]) * GIB, COSTS[shape], limits)


@pytest.mark.parametrize("shape", COSTS)
@pytest.mark.parametrize("card_gib", CARDS_GIB)
def test_every_card_from_8_gb_holds_all_that_is_chosen(card_gib: float, shape: str) -> None:
    sizes, costs = sizes_on(card_gib, shape), COSTS[shape]
    assert sizes is not None
    needed = (
        sizes.max_num_seqs * costs.row + sizes.num_pages * costs.page + sizes.code2wav_frames * costs.frame
        + sizes.prefill_tokens * costs.token + sizes.reference_s * REFERENCE_BYTES_PER_S
    )  # fmt: skip
    assert needed <= (card_gib - WEIGHTS_GIB[shape]) * GIB - 0.4 * GIB
    assert sizes.num_pages >= min(5 * sizes.max_num_seqs, 0.59 * (card_gib - WEIGHTS_GIB[shape]) * GIB / costs.page)
    assert sizes.code2wav_frames >= LEAST_FRAMES


@pytest.mark.parametrize("shape", COSTS)
def test_a_larger_card_is_never_given_less(shape: str) -> None:
    chosen = [sizes_on(card_gib, shape) for card_gib in CARDS_GIB]
    for less, more in pairwise(chosen):
        assert less is not None and more is not None
        assert less.max_num_seqs <= more.max_num_seqs
        assert less.num_pages <= more.num_pages
        assert less.code2wav_frames <= more.code2wav_frames


def test_a_card_of_8_gb_holds_tens_of_rows_and_a_large_one_all() -> None:
    small, large = sizes_on(7.2, "1.7b"), sizes_on(139, "1.7b")
    assert small is not None and large is not None
    assert 16 <= small.max_num_seqs <= 64
    assert (large.max_num_seqs, large.code2wav_frames, large.prefill_tokens) == (2048, 5200, 8192)
    assert large.reference_s == 96


@pytest.mark.parametrize(("shape", "token_kib"), [("1.7b", 52), ("0.6b", 28)])
def test_costs_are_not_below_what_was_measured(shape: str, token_kib: int) -> None:
    costs = COSTS[shape]
    assert costs.page == 7 * MIB
    assert 1.65 * MIB <= costs.frame <= 1.9 * MIB
    assert 297 * 1024 + 0.38 * MIB <= costs.row <= 0.75 * MIB
    assert token_kib * 1024 <= costs.token <= 1.3 * token_kib * 1024


def test_options_are_upper_limits() -> None:
    sizes = sizes_on(23, "1.7b", replace(LIMITS, max_num_seqs=7, num_pages=112, code2wav_frames=400))
    assert sizes is not None
    assert (sizes.max_num_seqs, sizes.num_pages, sizes.code2wav_frames) == (7, 112, 400)


def test_a_card_that_cannot_hold_one_row_is_refused_with_what_helps() -> None:
    assert sizes_on(5, "1.7b") is None
    least = least_bytes(COSTS["1.7b"], LIMITS)
    assert fit(least, COSTS["1.7b"], LIMITS) is not None
    assert fit(least - 4 * MIB, COSTS["1.7b"], LIMITS) is None
    message = str(too_small("cuda:0 (NVIDIA T4)", 0.8 * GIB, least))
    for part in ("NVIDIA T4", "0.8 GiB", f"{least / GIB:.1f} GiB", "--profile", "0.6B", "--max-num-seqs"):
        assert part in message


def test_a_codec_on_a_second_device_takes_nothing_of_the_first() -> None:
    together = fit(6 * GIB, COSTS["1.7b"], LIMITS)
    apart = fit(6 * GIB, COSTS["1.7b"], LIMITS, codec_free_bytes=12 * GIB)
    assert together is not None and apart is not None
    assert apart.max_num_seqs >= together.max_num_seqs and apart.code2wav_frames == 5200
    assert fit(6 * GIB, COSTS["1.7b"], LIMITS, codec_free_bytes=0.5 * GIB) is None
