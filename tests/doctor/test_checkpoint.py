"""What check_checkpoint finds in a checkpoint, and in the clip that it makes with it."""

from __future__ import annotations

import pytest

from tts_batch.doctor import Finding
from tts_batch.doctor.checkpoint import check_checkpoint
from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.tiny import build_tiny


def found(name: str, kind: str, device: str = "cpu") -> dict[str, Finding]:
    checkpoint = resolve_checkpoint(str(build_tiny(name, kind)))
    return {finding.subject: finding for finding in check_checkpoint(checkpoint, device, "float32")}


def test_the_trained_voice_is_good() -> None:
    findings = found("tiny", "custom_voice")
    assert {subject: finding.level for subject, finding in findings.items()} == {
        "checkpoint": "ok", "tokenizer": "ok", "weights": "ok", "clip": "ok"
    }  # fmt: skip
    assert findings["clip"].detail.startswith("'Hello.' became ")


def test_a_clip_without_an_end_is_worth_a_note() -> None:
    clip = found("tiny-random", "base")["clip"]
    assert (clip.level, clip.detail) == ("note", "'Hello.' has no end within 100 frames")


def test_a_device_that_is_not_there_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = found("tiny-random", "base", device="musa")
    assert (findings["weights"].level, "musa" in findings["weights"].detail) == ("problem", True)
    assert "clip" not in findings
