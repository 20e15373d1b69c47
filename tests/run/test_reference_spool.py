"""References travel under their content's key and are gone after the run."""

from __future__ import annotations

import io
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tts_batch.errors import RowError
from tts_batch.records import RefAudio
from tts_batch.run import reference_spool
from tts_batch.run.reference_spool import ReferenceSpool

TONE = (0.3 * np.sin(np.arange(48_000) / 10)).astype(np.float32)


def wav_bytes() -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, TONE, 24_000, format="WAV", subtype="FLOAT")
    return buffer.getvalue()


def test_every_form_arrives(tmp_path: Path) -> None:
    file = tmp_path / "voice.wav"
    file.write_bytes(wav_bytes())
    spool = ReferenceSpool(tmp_path / "spool")
    forms = [
        RefAudio(path=str(file), label="voice.wav"),
        RefAudio(data=wav_bytes(), label="sha256:1"),
        RefAudio(array=TONE, sampling_rate_hz=24_000, label="sha256:2"),
    ]
    for number, form in enumerate(forms):
        reference = spool.pin(f"row{number}", f"key{number}", form, "words")
        assert (reference.key, reference.text) == (f"key{number}", "words")
        assert np.array_equal(reference.load(), TONE)
    assert sorted(path.name for path in (tmp_path / "spool").iterdir()) == ["key1", "key2"]  # a path is not copied
    spool.remove()
    assert not (tmp_path / "spool").exists()


@pytest.mark.parametrize(
    "form",
    [RefAudio(data=b"RIFF", label="sha256:1"), RefAudio(array=TONE, sampling_rate_hz=24_000, label="sha256:2")],
)
def test_a_file_that_is_gone_is_the_reference_s_failure_and_may_come_back(tmp_path: Path, form: RefAudio) -> None:
    spool = ReferenceSpool(tmp_path / "spool")
    reference = spool.pin("row", "key", form, None)
    spool.remove()
    with pytest.raises(RowError, match=r"sha256:.* cannot be read from .*: No such file") as caught:
        reference.load()
    assert (caught.value.reason, caught.value.transient) == ("ref_unreadable", True)


def test_what_another_run_has_left_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "key").touch()
    reference = ReferenceSpool(tmp_path).pin("row", "key", RefAudio(data=wav_bytes(), label="x"), None)
    assert np.array_equal(reference.load(), TONE)


def test_a_file_stays_while_a_row_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_spool, "MAX_SPOOLED", 2)
    spool = ReferenceSpool(tmp_path)
    for row_id, key in (("1", "a"), ("2", "b"), ("3", "c"), ("4", "a")):
        spool.pin(row_id, key, RefAudio(data=b"x", label=key), None)
    for row_id in ("1", "2", "3"):
        spool.release(row_id)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c"]  # b was idle and the oldest
    spool.pin("5", "d", RefAudio(data=b"x", label="d"), None)
    spool.pin("6", "a", RefAudio(path="/voice.wav"), None)
    spool.release("6")  # the same content elsewhere: a is still needed
    spool.release("no reference")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "c", "d"]
    spool.release("4")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "d"]


def test_a_release_costs_the_same_however_many_rows_are_under_way(tmp_path: Path) -> None:
    spool = ReferenceSpool(tmp_path)
    for number in range(10_000):
        spool.pin(f"row{number}", f"key{number}", RefAudio(data=b"x", label=""), None)
    seconds = []
    for part in (range(500), range(9_500, 10_000)):
        for number in part:
            started = time.perf_counter()
            spool.release(f"row{number}")
            seconds.append(time.perf_counter() - started)
    assert np.median(seconds) < 0.2e-3
