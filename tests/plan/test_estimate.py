"""Estimates: from measured figures and the model's shape, and none where nothing was measured."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.plan.support import Planner
from tts_batch.model.tiny import build_tiny
from tts_batch.plan.planner import SPEEDS

LOG = Path(__file__).parents[2] / "benchmarks" / "log.md"


def test_figures_are_those_of_the_log() -> None:
    speed = SPEEDS[2048]
    log = LOG.read_text()
    assert f"## {speed.entry}, NVIDIA {speed.card}" in log
    assert re.search(rf"^\| {speed.rows} \| {1000 * speed.frame_s:.2f} \|", log, re.MULTILINE)
    assert f"{speed.codec_audio_s_per_s:,.0f}" in log
    one_after_the_other = 1 / (12.5 * speed.frame_s / speed.rows + 1 / speed.codec_audio_s_per_s)
    assert speed.gpu_s(3600) == pytest.approx(3600 / one_after_the_other)


def test_a_plan_shows_memory_always_and_time_where_it_was_measured(planner: Planner) -> None:
    shown = planner.plan({"text": "Hello there.", "speaker": "ryan"}).to_dict()["models"][0]
    folder = build_tiny("tiny-random", "custom_voice")
    assert shown["weights_bytes"] == sum(file.stat().st_size for file in folder.glob("**/*.safetensors")) > 1e6
    assert shown["cache_bytes_per_row"] > 32 * 2 * 2
    assert (shown["gpu_hours"], shown["measured"]) == (None, None)


def test_memory_of_the_released_shape(planner: Planner) -> None:
    """28 layers of 8 heads of 128 in bfloat16, keys and values: 112 KiB a position."""
    (totals,) = planner.plan({"text": "Hello there.", "speaker": "ryan"}).groups
    checkpoint = totals.model.checkpoint
    talker = replace(checkpoint.config.talker, num_hidden_layers=28, num_key_value_heads=8, head_dim=128)
    checkpoint = replace(checkpoint, config=replace(checkpoint.config, talker=talker))
    released = replace(totals, model=replace(totals.model, checkpoint=checkpoint))
    positions = totals.prompt_positions + totals.expected_frames
    assert released.cache_bytes_per_row == 112 * 1024 * positions
    assert released.weights_bytes == totals.weights_bytes
