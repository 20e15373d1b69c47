"""What check_machine finds when something that a run needs is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tts_batch.doctor import Finding
from tts_batch.doctor.machine import check_machine


def found() -> dict[str, Finding]:
    return {finding.subject: finding for finding in check_machine()}


@pytest.mark.parametrize(("module", "subject"), [("torch", "torch"), ("soundfile", "libsndfile")])
def test_a_library_that_cannot_be_loaded_is_a_problem(
    module: str, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    problem = found()[subject]
    assert problem.level == "problem"
    assert module in problem.detail


def test_a_cache_that_cannot_be_written_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TTS_BATCH_CACHE", str(tmp_path / "new" / "cache"))
    assert found()["cache"].level == "ok"
    (tmp_path / "new").write_text("a file")
    problem = found()["cache"]
    assert (problem.level, "TTS_BATCH_CACHE" in problem.detail) == ("problem", True)
    assert not (tmp_path / "cache").exists()


def test_without_ffmpeg_some_recordings_cannot_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert found()["ffmpeg"].level == "note"
