"""One bar on a terminal, plain lines elsewhere, nothing when asked for nothing."""

from __future__ import annotations

import pytest

from tts_batch.run import progress as progress_module
from tts_batch.run.progress import Progress


def run(mode: str) -> None:
    with Progress(mode, 4) as progress:  # type: ignore[arg-type]
        progress.keep(failed=True)
        progress.start_clock()
        for failed in (False, True, False):
            progress.end(2.0, failed=failed)
        progress.info("a sentence")


def test_plain_lines(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "PLAIN_EVERY_S", 0.0)
    run("auto")  # stderr is captured, so it is no terminal
    out, err = capfd.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0] == "rows=1/4 audio_s_per_s=0.0 failed=1 eta_s=?"
    assert lines[-2] == "a sentence"
    assert lines[-1].startswith("rows=4/4 audio_s_per_s=")
    assert lines[-1].endswith("failed=2 eta_s=0")


def test_plain_lines_are_rare(capfd: pytest.CaptureFixture[str]) -> None:
    run("plain")
    assert len(capfd.readouterr().err.splitlines()) == 2  # the sentence and the last


def test_the_bar(capfd: pytest.CaptureFixture[str]) -> None:
    run("bar")
    out, err = capfd.readouterr()
    assert out == ""
    assert "4/4" in err
    assert "audio_s_per_s=" in err
    assert "failed=2" in err


def test_none(capfd: pytest.CaptureFixture[str]) -> None:
    run("none")
    assert capfd.readouterr().err == ""
    with Progress("none", 4) as progress:
        progress.warn("a worker died")
    assert capfd.readouterr().err == "a worker died\n"
