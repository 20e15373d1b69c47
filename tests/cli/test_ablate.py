"""`tts-batch bench ablate` from end to end on a small checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tts_batch.bench.ablate import VARIANTS
from tts_batch.cli.main import main
from tts_batch.errors import ExitStatus

SMALL = ["bench", "ablate", "--model", "tiny-random", "--device", "cpu", "--rows", "1", "--references", "1"]


def test_variants_are_compared_in_turns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    asked = ["single-references", "v1-b2"]
    assert main([*SMALL, "--json", str(path), *(f"--only={name}" for name in asked)]) == ExitStatus.OK
    report = json.loads(path.read_text())
    assert [found["name"] for found in report["variants"]] == ["v1-b2", "single-references"]
    said = capsys.readouterr().out
    assert report["v2_b2_over_v1_b2"] is None
    for found in report["variants"]:
        assert (found["is_complete"], found["problem"], found["num_rows"]) == (True, None, 1)
        assert len(found["default_audio_s_per_s"]) == len(found["audio_s_per_s"]) == 2
        assert found["ratio_min"] <= found["ratio"] <= found["ratio_max"]
        assert f"{found['name']:32} {found['num_rows']:>4} " in said


def test_without_time_everything_is_left_out_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--budget-s", "1", "--rounds", "9"]) == ExitStatus.SOME_FAILED
    assert capsys.readouterr().out.count("no time") == len(VARIANTS)


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (["bench", "ablate"], 2, "either --shape"),
        ([*SMALL, "--only", "graphs"], 2, "--only graphs: the variants are v2-b2, v1-b2, no-graphs, "),
        (["bench", "--rows", "4", *SMALL[1:]], 2, "options of ablate go behind its name"),
        ([*SMALL, "--budget-s", "601"], 2, "600"),
        ([*SMALL, "--device", "musa"], 5, "musa"),
    ],
)
def test_what_cannot_be_compared(args: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == status
    assert words in capsys.readouterr().err
