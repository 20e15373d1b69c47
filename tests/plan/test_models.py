"""Which checkpoint speaks a row, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plan.support import Planner, reasons
from tts_batch.errors import CannotContinueError, UsageError
from tts_batch.model.checkpoint import OFFICIAL
from tts_batch.model.tiny import build_tiny

CLONE = {"text": "a", "ref_audio": "ref.wav", "ref_text": "What it says."}
PRESET = {"text": "a", "speaker": "Vivian"}
DESIGN = {"text": "a", "instruct": "An old man with a soft voice."}


def test_tiny_takes_the_task_of_each_row(planner: Planner) -> None:
    planned = planner.rows(PRESET, CLONE, DESIGN, {**PRESET, "instruct": "softly"}, {**CLONE, "task": "base"})
    assert reasons(planned) == [None] * 5
    tasks = ["custom_voice", "base", "voice_design", "custom_voice", "base"]
    assert [item.row.task for item in planned] == tasks
    assert [item.model_group.task for item in planned if item.model_group] == tasks
    assert {item.model_group.name for item in planned if item.model_group} == {"tiny-random"}


def test_a_mixed_table_has_a_group_for_each_checkpoint(planner: Planner) -> None:
    plan = planner.plan(PRESET, CLONE, PRESET, {"text": "", "instruct": "x"})
    assert [(group.model.task, group.num_rows) for group in plan.groups] == [("custom_voice", 2), ("base", 1)]


def model(kind: str, size: str = "1b7") -> str:
    return str(build_tiny("tiny-random", kind, size))


@pytest.mark.parametrize(
    ("kind", "row", "reason"),
    [
        ("base", CLONE, None),
        ("base", {**CLONE, "ref_text": " ", "x_vector_only": True}, None),
        ("base", PRESET, "wrong_task"),
        ("base", {**CLONE, "speaker": "vivian"}, "wrong_task"),
        ("base", {**CLONE, "instruct": "softly"}, "wrong_task"),
        ("base", {"text": "a"}, "ref_missing"),
        ("base", {**CLONE, "ref_audio": None}, "ref_missing"),
        ("base", {**CLONE, "task": "custom_voice"}, "wrong_task"),
        ("custom_voice", PRESET, None),
        ("custom_voice", {**PRESET, "instruct": "softly"}, None),
        ("custom_voice", {**PRESET, "ref_audio": "ref.wav"}, "wrong_task"),
        ("custom_voice", CLONE, "wrong_task"),
        ("custom_voice", {"text": "a"}, "bad_speaker"),
        ("custom_voice", {"text": "a", "speaker": "nobody"}, "bad_speaker"),
        ("voice_design", DESIGN, None),
        ("voice_design", {"text": "a"}, "bad_instruct"),
        ("voice_design", {**DESIGN, "speaker": "vivian"}, "wrong_task"),
        ("voice_design", {**DESIGN, "ref_audio": "ref.wav"}, "wrong_task"),
    ],
)
def test_b13_what_a_checkpoint_would_ignore_or_lacks_fails(
    planner: Planner, kind: str, row: dict[str, Any], reason: str | None
) -> None:
    (planned,) = planner.rows(row, model=model(kind))
    assert reasons([planned]) == [reason]
    assert planned.row.task == row.get("task", kind)


def test_b13_the_message_names_column_and_kind(planner: Planner) -> None:
    (planned,) = planner.rows({**CLONE, "speaker": "vivian"}, model=model("base"))
    assert planned.row.failure is not None
    assert "speaker is given" in planned.row.failure.message and "Base" in planned.row.failure.message


def test_b14_instruct_on_the_small_model_is_remarked_with_the_count(planner: Planner) -> None:
    rows = [{**PRESET, "instruct": "softly"}] * 3 + [PRESET] * 2
    plan = planner.plan(*rows, model=model("custom_voice", "0b6"))
    assert plan.num_failed == 0
    assert any("instruct is dropped" in note and "3 rows" in note for note in plan.notes)
    assert not planner.plan(*rows, model=model("custom_voice")).notes


def test_b15_speakers_in_any_case(planner: Planner) -> None:
    planned = planner.rows(
        {"text": "a", "speaker": "ERIC", "language": "Chinese"}, {"text": "a", "speaker": " Uncle Fu"}
    )
    assert [item.row.speaker for item in planned] == ["eric", "uncle_fu"]
    bad = planner.rows({"text": "a", "speaker": "alloy"})
    assert bad[0].row.failure and "ono_anna" in bad[0].row.failure.message


def test_b23_a_blank_transcript_fails_alone(planner: Planner) -> None:
    planned = planner.rows(CLONE, CLONE, {**CLONE, "ref_text": "  "}, CLONE, {**CLONE, "ref_text": None})
    assert reasons(planned) == [None, None, "ref_text_missing", None, "ref_text_missing"]
    assert reasons(planner.rows({**CLONE, "ref_text": ""}, x_vector_only=True)) == [None]


def test_defaults_make_text_alone_enough(planner: Planner) -> None:
    assert reasons(planner.rows({"text": "a"}, speaker="vivian")) == [None]
    (planned,) = planner.rows({"text": "a"}, instruct="An old man.")
    assert planned.row.task == "voice_design"


def test_without_a_model_the_official_one_that_fits_is_named(planner: Planner) -> None:
    for row, task in ((CLONE, "base"), (PRESET, "custom_voice"), (DESIGN, "voice_design")):
        with pytest.raises(CannotContinueError) as caught:
            planner.plan(row, model=None)
        assert OFFICIAL[task] in str(caught.value).split(" Give ")[0]
        assert "tiny" in str(caught.value)


def test_rows_that_fail_anyway_need_no_model(planner: Planner) -> None:
    assert planner.plan({"text": ""}, model=None).failures == {"empty_text": 1}


@pytest.mark.parametrize("name", ["/nowhere/at/all", "tiny-ish", "some/thing"])
def test_a_model_that_cannot_be_had_ends_the_run(planner: Planner, name: str) -> None:
    with pytest.raises(CannotContinueError, match="tiny"):
        planner.plan(PRESET, model=name)


def test_a_revision_alone_is_a_usage_error(planner: Planner) -> None:
    with pytest.raises(UsageError, match="--model-revision"):
        planner.plan(PRESET, model=None, model_revision="abc")


def test_sampling_is_the_checkpoints_under_the_command_lines(planner: Planner) -> None:
    (plain,) = planner.rows(PRESET)
    (given,) = planner.rows(PRESET, temperature=0.7, subtalker_top_k=20, min_new_tokens=5)
    (greedy,) = planner.rows(PRESET, greedy=True)
    assert (plain.sampling.temperature, plain.sampling.max_new_tokens) == (0.9, 8192)
    assert (given.sampling.temperature, given.sampling.subtalker_top_k, given.sampling.min_new_tokens) == (0.7, 20, 5)
    assert (greedy.sampling.do_sample, greedy.sampling.subtalker_dosample) == (False, False)
