"""PlanSpool: the manifest that is made from kept rows is the one that planning them again gives."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from tests.plan.support import Planner
from tts_batch.plan.planner import PlannedRow, iter_planned, make_plan
from tts_batch.run.plan_spool import BATCH_ROWS, PlanSpool
from tts_batch.store.index import input_digest
from tts_batch.store.manifest import manifest_row

TEXT = "Hello there, this is a test. And here is a second sentence of it, so that it can be split."
PRESET = {"text": TEXT, "speaker": "vivian", "language": "en"}
CLONE = {"text": "a", "ref_audio": "ref.wav", "ref_text": "What it says."}


@pytest.fixture
def planned(tmp_path_factory: pytest.TempPathFactory) -> list[PlannedRow]:
    planner = Planner(tmp_path_factory.mktemp("table"))
    rows = [{**PRESET, "id": f"p{i}", "mood": "calm", "when": [i, None]} for i in range(BATCH_ROWS + 3)]
    config = planner.config(*rows, {"id": "bad", "text": " "}, {**CLONE, "id": "clone"}, split_text=50)
    return list(iter_planned(config, make_plan(config)))


def shown(rows: list[PlannedRow]) -> list[tuple]:
    return [(manifest_row(row, None), dict(row.row.extras), input_digest(row)) for row in rows]


def test_rows_come_back_as_the_manifest_needs_them(planned: list[PlannedRow], tmp_path: Path) -> None:
    spool = PlanSpool(tmp_path)
    assert list(spool.watch(planned)) == planned
    for _ in range(2):  # a manifest that meets a wider type starts over
        rows = spool.rows()
        assert rows is not None
        assert shown(list(rows)) == shown(planned)
    assert planned[0].is_split and planned[-1].row.ref_audio is not None and planned[-2].row.failure is not None
    spool.close()
    assert list(tmp_path.iterdir()) == []


def test_rows_that_were_not_all_watched_are_not_given(planned: list[PlannedRow], tmp_path: Path) -> None:
    spool = PlanSpool(tmp_path)
    assert len(list(islice(spool.watch(planned), len(planned) - 1))) == len(planned) - 1
    assert spool.rows() is None
    spool.close()


def test_a_value_that_cannot_be_kept_stops_no_row(planned: list[PlannedRow], tmp_path: Path) -> None:
    planned[1].row.extras["mood"] = lambda: None  # no file can hold it
    spool = PlanSpool(tmp_path)
    assert list(spool.watch(planned)) == planned
    assert spool.rows() is None
