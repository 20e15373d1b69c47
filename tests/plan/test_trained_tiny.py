"""The trained `tiny` in a plan: other languages, how long it speaks, what it clones best from."""

from __future__ import annotations

import pytest

from tests.plan.support import Planner, reasons

REMARK = "the text has letters that English lacks, and the model speaks only English"


@pytest.mark.parametrize(
    "row",
    [
        {"speaker": "ryan"},
        {"instruct": "A low male voice."},
        {"ref_audio": "ref.wav", "ref_text": "What it says."},
    ],
    ids=["custom_voice", "voice_design", "base"],
)
@pytest.mark.parametrize("language", ["german", "zh", "French"])
def test_another_language_is_refused_by_name(planner: Planner, row: dict[str, str], language: str) -> None:
    plan = planner.plan({"text": "a", "language": language} | row, {"text": "a", "language": "en"} | row, model="tiny")
    assert plan.failures == {"bad_language": 1}
    (failed,) = plan.examples
    assert failed.failure is not None
    assert failed.failure.message.endswith("and the model speaks only english.")
    assert not [note for note in plan.notes if REMARK in note]


def test_a_default_language_counts_like_the_rows_own(planner: Planner) -> None:
    planned = planner.rows({"text": "a", "speaker": "ryan"}, model="tiny", language="german")
    assert reasons(planned) == ["bad_language"]


@pytest.mark.parametrize("text", ["你好", "Der Zug fährt.", "Привет"])
def test_foreign_letters_are_remarked_where_no_language_is_given(planner: Planner, text: str) -> None:
    (note,) = planner.plan({"text": text, "speaker": "ryan"}, model="tiny").notes
    assert note.startswith(REMARK)
    assert not planner.plan({"text": text, "speaker": "ryan"}, model="tiny-random").notes


def test_english_is_no_matter_for_remarks(planner: Planner) -> None:
    assert not planner.plan({"text": "It’s 5 – no, 6_000 £!", "speaker": "ryan"}, model="tiny").notes


def test_its_clones_have_their_text_first_unless_told_otherwise(planner: Planner) -> None:
    clone = {"text": "a", "ref_audio": "ref.wav", "x_vector_only": True}
    rows = (
        {**clone, "id": "1"},
        {**clone, "id": "2", "non_streaming": False},
        {**clone, "id": "3", "non_streaming": True},
    )
    trained, noise = planner.rows(*rows, model="tiny"), planner.rows(*rows)
    assert [planned.row.non_streaming for planned in trained] == [True, False, True]
    assert [planned.row.non_streaming for planned in noise] == [None, False, True]
    assert trained[0].fingerprint != trained[1].fingerprint
    (note,) = planner.plan(*rows, model="tiny").notes
    assert note.startswith("clones of tiny are hard to understand where non_streaming is false")
    assert not planner.plan({"text": "a", "speaker": "ryan", "non_streaming": False}, model="tiny").notes
    assert not planner.plan(*rows).notes


def test_texts_that_it_has_hardly_learnt_are_remarked(planner: Planner) -> None:
    sentence = "There are nineteen chairs in the second room, and nobody sits on them. "
    short, long = ({"text": sentence * count, "speaker": "ryan"} for count in (2, 4))
    assert not planner.plan(short, model="tiny").notes
    (note,) = planner.plan(short, long, model="tiny").notes
    assert note.startswith("tiny is hard to understand beyond about 40 words")
    assert not planner.plan(long, model="tiny", split_text=100).notes
    assert not planner.plan(long).notes


def test_its_many_tokens_are_no_longer_speech(planner: Planner) -> None:
    row = {"text": "There are nineteen chairs in the second room.", "speaker": "ryan"}
    (trained,), (noise,) = planner.rows(row, model="tiny"), planner.rows(row, model="tiny-random")
    assert 2.4 < trained.expected_frames / 12.5 < 4.8
    assert trained.model_group is not None
    assert trained.max_frames >= 12 * trained.model_group.tokenizer.count(row["text"])
    assert noise.expected_frames > trained.expected_frames
