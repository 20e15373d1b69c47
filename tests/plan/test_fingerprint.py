"""Fingerprints: everything that changes the sound, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.plan.support import Planner
from tts_batch.config import JobConfig
from tts_batch.engine.request import SamplingParams
from tts_batch.model.tiny import build_tiny
from tts_batch.plan.fingerprint import RowFingerprints, differing_keys, run_fingerprint
from tts_batch.records import Row

ROW = {"id": "x", "text": "Hello.", "ref_audio": "ref.wav", "ref_text": "What it says.", "language": "en"}


def fingerprint(planner: Planner, row: dict[str, Any], **options: Any) -> str:
    (planned,) = planner.rows(row, **options)
    assert planned.row.failure is None
    return planned.fingerprint


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({"text": "Hello!"}, {}),
        ({"language": None}, {}),
        ({"ref_text": "Other."}, {}),
        ({"x_vector_only": True}, {}),
        ({"non_streaming": True}, {}),
        ({"seed": 5}, {}),
        ({"max_frames": 20}, {}),
        ({"id": "y"}, {}),  # by its seed
        ({}, {"seed": 1}),
        ({}, {"temperature": 0.8}),
        ({}, {"greedy": True}),
        ({}, {"max_frames": 50}),
        ({}, {"dtype": "bfloat16"}),
        ({}, {"engine": "tests.fake_engine:create"}),
        ({}, {"runner": "v2"}),
        ({}, {"model": "tiny"}),
        ({}, {"trim": True}),
    ],
    ids=str,
)
def test_what_changes_the_sound_changes_the_fingerprint(
    planner: Planner, change: dict[str, Any], options: dict[str, Any]
) -> None:
    assert fingerprint(planner, {**ROW, **change}, **options) != fingerprint(planner, ROW)


@pytest.mark.parametrize(
    ("change", "options"),
    [
        ({"language": "English", "mood": "calm"}, {}),
        ({"non_streaming": False}, {}),  # the default of a clone
        ({"task": "base"}, {}),
        ({}, {"device": "cpu", "progress": "none", "attempts": 3, "max_num_seqs": 4, "strict": True}),
    ],
    ids=str,
)
def test_what_does_not_keeps_it(planner: Planner, change: dict[str, Any], options: dict[str, Any]) -> None:
    assert fingerprint(planner, {**ROW, **change}, **options) == fingerprint(planner, ROW)


LONG = {**ROW, "text": "A sentence of some length stands here. " * 3}


def test_splitting_and_trimming_count_where_they_are_done(planner: Planner) -> None:
    long = fingerprint(planner, LONG)
    assert fingerprint(planner, LONG, split_text=200) == long  # it fits
    assert fingerprint(planner, ROW, split_text=50) == fingerprint(planner, ROW)
    split = fingerprint(planner, LONG, split_text=50)
    assert split != long
    assert fingerprint(planner, LONG, split_text=60) == split  # the same pieces
    assert fingerprint(planner, LONG, split_text=90) != split
    assert fingerprint(planner, LONG, split_text=50, split_pause_s=0.5) != split
    assert fingerprint(planner, ROW, trim=True, trim_margin_s=0.2) != fingerprint(planner, ROW, trim=True)


def test_without_them_a_run_is_what_it_was_before_there_were_any(planner: Planner) -> None:
    """Folders of earlier versions go on: the fingerprint was taken with the last version without these settings."""
    config = planner.config(ROW, seed=3)
    row = Row(0, "x", "t:1", text="Hello. " * 40, task="custom_voice", speaker="ryan")
    common = {"voice_key": None, "non_streaming": True, "max_frames": 200, "seed": 5}
    assert RowFingerprints(config, "weights", SamplingParams()).of(row, **common) == "33fae9374dd40ef6990dcfce6d047183"
    plain = planner.plan(ROW).settings
    assert not {"split_text", "split_pause_s", "trim", "trim_margin_s"} & plain.keys()
    assert differing_keys(plain, planner.plan(split_text=100).settings) == ["split_pause_s", "split_text"]
    assert differing_keys(plain, planner.plan(trim=True).settings) == ["trim", "trim_margin_s"]


def test_the_voice_counts_by_its_content(planner: Planner) -> None:
    before = fingerprint(planner, ROW)
    shutil.copy(planner.folder / "ref.wav", planner.folder / "copy.wav")
    assert fingerprint(planner, {**ROW, "ref_audio": "copy.wav"}) == before
    sound = (planner.folder / "ref.wav").read_bytes()
    (planner.folder / "ref.wav").write_bytes(sound[:-2] + b"\x01\x02")
    assert fingerprint(planner, ROW) != before


def test_the_transcript_does_not_count_where_it_is_dropped(planner: Planner) -> None:
    row = {**ROW, "x_vector_only": True}
    assert fingerprint(planner, row) == fingerprint(planner, {**row, "ref_text": None})


def test_the_model_counts_by_its_weights_wherever_it_lies(planner: Planner, tmp_path: Path) -> None:
    here = build_tiny("tiny-random", "base")
    there = tmp_path / "moved"
    shutil.copytree(here, there)
    assert fingerprint(planner, ROW, model=str(there)) == fingerprint(planner, ROW)
    weights = there / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    assert fingerprint(planner, ROW, model=str(there)) != fingerprint(planner, ROW)


def test_a_runs_settings_name_what_differs(planner: Planner) -> None:
    row = {"text": "a", "speaker": "vivian"}
    ours = planner.plan(row).settings
    theirs = planner.plan(row, temperature=0.5, device="cpu", limit=1, seed=3).settings
    assert differing_keys(ours, theirs) == ["seed", "temperature"]
    assert run_fingerprint(ours) != run_fingerprint(theirs)
    assert differing_keys(ours, planner.plan(row, model="tiny").settings) == ["weights_custom_voice"]
    assert set(ours) <= {*JobConfig.model_fields, "semantics", "weights_custom_voice"}
