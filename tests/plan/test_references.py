"""References in a plan: URLs, and what only decoding finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.dataset.web_server import download_here, web_server
from tests.plan.support import Planner, reasons
from tts_batch.dataset.fetch import Fetcher
from tts_batch.plan import planner as planner_module
from tts_batch.plan.planner import iter_planned, make_plan

CLONE = {"text": "a", "ref_audio": "ref.wav", "ref_text": "What it says."}


def test_a_url_is_the_voice_of_its_content(planner: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner_module, "make_fetcher", lambda config: Fetcher(tmp_path / "kept", download_here))
    with web_server() as server:
        server.files["/ref.wav"] = (planner.folder / "ref.wav").read_bytes()
        by_url = {**CLONE, "ref_audio": server.url("/ref.wav")}
        bad = {**CLONE, "ref_audio": server.url("/gone.wav")}
        config = planner.config({**CLONE, "id": "x"}, {**by_url, "id": "y"}, {**bad, "id": "z"}, allow_url=True)
        plan = make_plan(config)
        here, there, gone = iter_planned(config, plan)
        assert server.asked == {"/ref.wav": 1, "/gone.wav": 1}
    assert plan.failures == {"ref_unreadable": 1}
    assert here.reference_key == there.reference_key is not None
    assert reasons([here, there, gone]) == [None, None, "ref_unreadable"]
    assert there.row.ref_audio is not None and there.row.ref_audio.label == by_url["ref_audio"]


def test_without_allow_url_nothing_is_asked(planner: Planner) -> None:
    assert planner.plan({**CLONE, "ref_audio": "http://127.0.0.1/a.wav"}).failures == {"url_refused": 1}


def test_local_addresses_are_refused_though_urls_are_allowed(planner: Planner) -> None:
    with web_server() as server:
        plan = planner.plan({**CLONE, "ref_audio": server.url("/a.wav", "127.0.0.1")}, allow_url=True)
        assert plan.failures == {"url_refused": 1}
        assert not server.asked


def test_deep_decodes_every_distinct_reference(planner: Planner) -> None:
    soundfile.write(planner.folder / "silent.wav", np.zeros(48_000), 24_000)
    soundfile.write(planner.folder / "nan.wav", np.full(48_000, np.nan), 24_000, subtype="FLOAT")
    (planner.folder / "unknown.wav").write_bytes(bytes(range(256)) * 100)
    names = ["ref.wav", "silent.wav", "nan.wav", "unknown.wav", "ref.wav", "silent.wav"]
    config = planner.config(*({**CLONE, "ref_audio": name} for name in names), {"text": "a", "speaker": "ryan"})
    assert make_plan(config).num_failed == 0
    plan = make_plan(config, deep=True)
    assert plan.failures == {"ref_silent": 2, "ref_non_finite": 1, "ref_unreadable": 1}
    assert sum(group.num_rows for group in plan.groups) == plan.num_planned == 3
    assert "distinct references decoded: 4" in plan.notes
