"""make_plan and iter_planned on whole inputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unicodedata
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.plan.support import Planner, reasons
from tts_batch.errors import UsageError
from tts_batch.plan.planner import iter_planned, make_plan

PRESET = {"text": "Hello there, this is a test.", "speaker": "vivian", "language": "en"}
CLONE = {"text": "a", "ref_audio": "ref.wav", "ref_text": "What it says."}


def test_a_plan_counts_everything(planner: Planner) -> None:
    plan = planner.plan(*[PRESET] * 5, {"text": ""}, {**PRESET, "language": "xx"}, {**PRESET, "seed": -1}, CLONE)
    assert (plan.num_rows, plan.num_failed, plan.num_planned) == (9, 3, 6)
    assert plan.failures == {"empty_text": 1, "bad_language": 1, "bad_seed": 1}
    assert [row.row_index for row in plan.examples] == [5, 6, 7]
    shown = plan.to_dict()
    assert 0 < shown["expected_audio_hours"] < 60 / 3600
    assert shown["budget_frames"] >= 6 * 192
    assert plan.expected_end_token_failures == pytest.approx(6 * 0.0034)
    shown = json.loads(json.dumps(plan.to_dict()))
    assert shown["examples"][0]["reason"] == "empty_text"
    assert [model["rows"] for model in shown["models"]] == [5, 1]


def test_planned_rows_stream_in_input_order_with_the_failed_ones(planner: Planner) -> None:
    config = planner.config({**PRESET, "id": "a", "mood": "calm"}, {"id": "b", "text": " "}, {**CLONE, "id": "c"})
    plan = make_plan(config)
    first, again = list(iter_planned(config, plan)), list(iter_planned(config, plan))
    assert [item.row.id for item in first] == ["a", "b", "c"]
    assert [item.fingerprint for item in first] == [item.fingerprint for item in again]
    assert first[0].row.extras == {"mood": "calm"}
    assert first[0].model_group is plan.groups[0].model
    assert (first[1].model_group, first[1].fingerprint) == (None, "")
    assert len({item.fingerprint for item in first}) == 3
    assert first[2].reference_key is not None and len(first[2].reference_key) == 64


def test_an_input_without_rows_is_a_usage_error(planner: Planner) -> None:
    (planner.folder / "t.jsonl").write_text("\n")
    with pytest.raises(UsageError):
        planner.plan()


def test_budgets_by_text_row_and_run(planner: Planner) -> None:
    long_text = "This is a rather long sentence, " * 20
    by_text = planner.rows(PRESET, {**PRESET, "text": long_text}, {**PRESET, "max_frames": 7})
    assert by_text[0].max_frames == 192
    assert by_text[1].model_group is not None
    assert by_text[1].max_frames == 12 * by_text[1].model_group.tokenizer.count(long_text) > 192
    assert by_text[2].max_frames == 7
    by_run = planner.rows(PRESET, {**PRESET, "max_frames": 7}, max_frames=3600)
    assert [item.max_frames for item in by_run] == [3600, 7]  # b05: what the user says, no hidden cap


def test_text_beyond_what_a_clip_can_hold(planner: Planner) -> None:
    planned = planner.rows({**PRESET, "text": "word " * 20_000}, {**PRESET, "max_frames": 40_000})
    assert reasons(planned) == ["text_too_long", "bad_row"]
    failure = planned[0].row.failure
    assert failure is not None and "8191 frames (655 s)" in failure.message


def test_b06_a_long_text_has_a_budget_for_each_piece(planner: Planner) -> None:
    long = {**PRESET, "text": "A sentence of some length stands here, and another follows. " * 400}
    (refused,) = planner.rows(long)
    assert refused.row.failure is not None and "--split-text" in refused.row.failure.message
    planned, short, given = planner.rows(long, PRESET, {**long, "max_frames": 300}, split_text=130)
    assert len(planned.pieces) == 200
    assert {piece.text for piece in planned.pieces} == {(long["text"][:120]).strip()}
    assert all(192 <= piece.max_frames < 1_000 for piece in planned.pieces)
    assert planned.max_frames == sum(piece.max_frames for piece in planned.pieces)
    assert planned.expected_frames == 200 * planned.pieces[0].expected_frames
    assert planned.row.text == long["text"]
    assert [piece.text for piece in short.pieces] == [PRESET["text"]]
    assert {piece.max_frames for piece in given.pieces} == {300}
    plan = planner.plan(split_text=130)
    assert plan.to_dict()["models"][0]["pieces"] == 401
    assert plan.groups[0].cache_bytes_per_row < planner.plan(PRESET).groups[0].cache_bytes_per_row * 4


def test_a_text_of_more_than_a_minute_is_remarked_unless_it_is_split(planner: Planner) -> None:
    long = {**PRESET, "text": "A sentence of some length stands here. " * 40}
    (note,) = planner.plan(PRESET, long, long).notes
    assert "more than 60 s" in note and "2 rows" in note
    assert not planner.plan(long, split_text=300).notes


def test_pieces_of_a_designed_voice_are_remarked(planner: Planner) -> None:
    design = {"text": "A sentence of some length stands here. " * 3, "instruct": "An old man."}
    assert not planner.plan(design).notes
    assert any("may differ" in note for note in planner.plan(design, split_text=50).notes)


def test_a_budget_that_no_row_can_have_is_a_usage_error(planner: Planner) -> None:
    with pytest.raises(UsageError, match="--max-frames 32768"):
        planner.plan(PRESET, max_frames=32_768)


def test_b18_runs_of_equal_letters_are_bounded(planner: Planner) -> None:
    planned = planner.rows({**PRESET, "text": "7" * 500}, {**PRESET, "text": "The same sentence. " * 100})
    assert all(192 <= item.max_frames <= 8191 for item in planned)


def test_b11_a_transcript_reaches_the_model_as_it_is_written(planner: Planner) -> None:
    texts = [
        "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
        unicodedata.normalize("NFD", "\u00dcber \u00e7a, na\u00efve"),
        "  two  spaces ",
    ]
    planned = planner.rows(*({**CLONE, "text": text, "ref_text": text} for text in texts))
    assert [(item.row.text, item.row.ref_text) for item in planned] == [(text, text) for text in texts]
    assert reasons(planned) == [None] * 3


def test_b12_digits_stay_digits_in_the_language_of_the_row(planner: Planner) -> None:
    text = "2005\u5e74\u6210\u7acb\uff0c2006~2007\u5e74\u53d1\u5c55"
    (planned,) = planner.rows({**CLONE, "text": text, "language": "Chinese"})
    assert (planned.row.text, planned.row.language) == (text, "chinese")
    assert planned.max_frames < 12 * 1.2 * len(text.encode())  # a runaway ends


def test_b22_a_transcript_that_does_not_fit_is_remarked(planner: Planner) -> None:
    assert any("does not fit the length" in note for note in planner.plan({**CLONE, "ref_text": "word " * 80}).notes)
    assert not planner.plan(CLONE).notes


@pytest.mark.parametrize(("seconds", "words"), [(2, "less than 3 s"), (31, "more than 30 s")])
def test_references_of_an_odd_length_are_remarked(planner: Planner, seconds: int, words: str) -> None:
    soundfile.write(planner.folder / "odd.wav", np.zeros(seconds * 8000), 8000)
    (note,) = planner.plan({**CLONE, "ref_audio": "odd.wav", "ref_text": "word " * 5}).notes
    assert words in note


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "nativ"}, "--engine 'nativ' is not one of native, vllm"),
        ({"engine": "no_such.module:create"}, "--engine.*no module 'no_such.module'"),
        ({"engine": "vllm", "save_codes": True}, "--engine vllm returns no codes: leave out --save-codes"),
        ({"engine": "vllm", "dtype": "float32"}, "bfloat16 alone: leave out --dtype float32"),
        ({"engine": "vllm", "device": "cpu"}, "CUDA alone: leave out --device cpu"),
        ({"engine": "vllm", "loop_frames": 50}, "does not look for loops: leave out --loop-frames"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_before_anything_starts(
    planner: Planner, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        planner.plan(PRESET, **options)


def test_what_vllm_lacks_is_remarked(planner: Planner) -> None:
    missing, limits = planner.plan(PRESET, engine="vllm").notes
    assert "cannot start here: vllm and vllm-omni not installed" in missing
    assert "returns no codes, does not end a loop before its budget, and takes at most 4096 positions" in limits


def test_b07_extreme_sampling_is_remarked(planner: Planner) -> None:
    assert any("--temperature 0.1 is extreme" in note for note in planner.plan(PRESET, temperature=0.1).notes)


def test_references_fail_by_their_header_before_any_model_loads(planner: Planner) -> None:
    soundfile.write(planner.folder / "short.wav", np.zeros(2400), 24_000)
    soundfile.write(planner.folder / "long.wav", np.zeros(130 * 8000), 8000)
    (planner.folder / "page.wav").write_text("<html>404</html>")
    names = ["ref.wav", "short.wav", "long.wav", "page.wav", "gone.wav"]
    planned = planner.rows(*({**CLONE, "ref_audio": name} for name in names))
    assert reasons(planned) == [None, "ref_too_short", "ref_too_long", "ref_unreadable", "ref_missing"]


def test_b54_remarks_on_columns_reach_the_plan(planner: Planner) -> None:
    assert any(
        "did you mean 'language'" in note
        for note in planner.plan({"text": "a", "speaker": "ryan", "langauge": 1}).notes
    )


def test_planning_loads_no_torch(planner: Planner) -> None:
    planner.plan(PRESET, CLONE)  # also builds the checkpoints, which needs torch, once for each cache
    program = (
        "import sys; from pathlib import Path; from tts_batch.config import JobConfig;"
        "from tts_batch.plan.planner import iter_planned, make_plan;"
        f"config = JobConfig(data=({str(planner.folder / 't.jsonl')!r},), out=Path('out'), model='tiny-random');"
        "plan = make_plan(config); assert len(list(iter_planned(config, plan))) == 2;"
        "assert plan.num_failed == 0;"
        "print({'torch', 'librosa', 'transformers', 'ray'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ), check=True
    )
    assert done.stdout.strip() == "set()"


def test_memory_does_not_grow_with_the_rows(planner: Planner) -> None:
    """Only the ids stay, as hashes."""
    import tracemalloc

    peaks = []
    for count in (500, 3000):
        config = planner.config(*({**PRESET, "id": f"row-{i}"} for i in range(count)))
        tracemalloc.start()
        make_plan(config)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 2500 * 400  # bytes
