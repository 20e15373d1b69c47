"""`--engine vllm` end to end, on the scripted vLLM-Omni of tests/fakes/vllm_site: killed, resumed, recorded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import soundfile

from tests.engine.vllm.processes import started, wait_until_gone
from tests.run.support import ROOT, make_config, read_manifest, start_job, wait_until
from tts_batch.run.job import run_job

SITE = ROOT / "tests" / "fakes" / "vllm_site"
OFF = dict.fromkeys(("too_long_factor", "too_short_factor", "silent_peak_dbfs", "noise_flatness", "long_silence_s"))


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(SITE))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SITE), str(ROOT)]))
    monkeypatch.setenv("FAKE_VLLM_PIDS", str(tmp_path / "pids"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")


def config_of(folder: Path, rows: list[dict[str, Any]], **options: Any) -> Any:
    return make_config(folder, rows, **{"engine": "vllm", "device": "cuda", "max_frames": 40, "checks": OFF, **options})


def row(number: int, word: str = "Fine") -> dict[str, Any]:
    return {"id": f"row-{number}", "text": f"{word} words, number {number}.", "speaker": "vivian"}


def test_a_killed_run_is_resumed_and_leaves_no_process(tmp_path: Path) -> None:
    rows = [row(number) for number in range(400)]
    config = config_of(tmp_path, rows, max_num_seqs=4)
    with start_job(config) as process:
        wait_until(lambda: len(list(config.out.glob("*/*.wav"))) >= 20)
        process.kill()
    wait_until_gone(tmp_path / "pids")
    made_before = len(list(config.out.glob("*/*.wav")))
    assert 20 <= made_before < 400, "it was not killed in the middle"
    run_job(config)
    manifest = read_manifest(config.out)
    assert [line["status"] for line in manifest] == ["ok"] * 400
    assert {soundfile.info(config.out / line["audio"]).frames for line in manifest} == {20 * 1_920}
    assert {(line["engine"], line["runner"], line["dtype"], line["eos"]) for line in manifest} == {
        ("vllm", "v2", "bfloat16", True)
    }
    assert len(started(tmp_path / "pids")) == 6
    wait_until_gone(tmp_path / "pids")
    (engine,) = json.loads((config.out / "run.json").read_text())["engines"]
    assert (engine["vllm"], engine["vllm_omni"]) == ("0.30.0", "0.30.0")


def test_a_dead_engine_is_restarted_and_only_the_row_that_kills_it_fails(tmp_path: Path) -> None:
    rows = [row(number) for number in range(12)]
    rows[5] = row(5, "Fatal")
    rows[7] = row(7, "Error")
    rows[9] = row(9, "Budget")
    config = config_of(tmp_path, rows, max_num_seqs=4)
    run_job(config)
    failed = {line["id"]: (line["reason"], line["message"]) for line in read_manifest(config.out) if line["reason"]}
    assert {name: reason for name, (reason, _) in failed.items()} == {
        "row-5": "worker_crash",
        "row-7": "engine_error",
        "row-9": "codec_budget_exhausted",
    }
    assert "EngineDeadError" in failed["row-5"][1]
    assert "malformed" in failed["row-7"][1]
    wait_until_gone(tmp_path / "pids")
