"""What a job's configuration says to an engine and of its clips."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tts_batch.config import build_config
from tts_batch.run.row_requests import clip_rules, engine_config


@pytest.mark.parametrize(
    ("setting", "field", "value"),
    [
        ("stall_timeout", "stall_timeout_s", 4.5),
        ("max_num_seqs", "max_num_seqs", 3),
        ("loop_frames", "loop_frames", 0),
        ("runner", "runner", "v2"),
        ("profile", "profile", "b2"),
        ("code2wav_mode", "code2wav_mode", "chunked"),
        ("cuda_graph", "cuda_graph", False),
        ("eager", "eager", True),
        ("dtype", "dtype", "bfloat16"),
        ("engine_options", "options", {"pages_per_row": "4"}),
    ],
)
def test_an_engine_gets_the_job_s_settings(setting: str, field: str, value: object) -> None:
    model = SimpleNamespace(checkpoint=SimpleNamespace(path=Path("/models/some")), revision="abc")
    config = build_config({"data": ("a.csv",), "out": "wavs", setting: value})
    given = engine_config(config, model, "cpu")
    assert (given.model, given.model_revision, given.device) == ("/models/some", "abc", "cpu")
    assert getattr(given, field) == value


@pytest.mark.parametrize(("name", "checked"), [("tiny", True), ("tiny-random", False)])
def test_what_speaks_is_held_to_the_length_of_its_text(name: str, checked: bool) -> None:
    limits = clip_rules(build_config({"data": ("a.csv",), "out": "wavs"}), SimpleNamespace(name=name)).limits
    assert [limit is not None for limit in (limits.too_long_factor, limits.too_short_factor)] == [checked] * 2
