"""The ends of references are read once for many clips."""

from __future__ import annotations

import io
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import soundfile

from tts_batch.dataset.audio import load_reference
from tts_batch.engine.request import Reference
from tts_batch.errors import RowError
from tts_batch.records import RefAudio
from tts_batch.worker.references import Tails

TONE = (0.3 * np.sin(np.arange(48_000) / 10)).astype(np.float32)


def wav_bytes() -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, TONE, 24_000, format="WAV", subtype="FLOAT")
    return buffer.getvalue()


def test_a_tail_is_read_once_for_all_clips_of_a_voice() -> None:
    loads: Counter[str] = Counter()

    def load(key: str) -> np.ndarray:
        loads[key] += 1
        return TONE

    tails = Tails()
    for _ in range(2):
        assert all(tails.find(Reference(f"voice{n}", partial(load, f"voice{n}"))) is not None for n in range(1_000))
    assert loads == {f"voice{n}": 1 for n in range(1_000)}


def test_a_reference_that_cannot_be_read_has_no_tail(tmp_path: Path) -> None:
    file = tmp_path / "voice.wav"
    reference = Reference("key", partial(load_reference, RefAudio(path=str(file), label="voice.wav")))

    def fails() -> np.ndarray:
        raise RowError("ref_unreadable", "It cannot be read.")

    tails = Tails()
    assert tails.find(Reference("other", fails)) is None
    assert tails.find(reference) is None
    file.write_bytes(wav_bytes())
    assert Tails().find(reference) is not None
