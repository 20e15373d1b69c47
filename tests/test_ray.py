"""Speech for batches of a dataset, without a cluster; tests/run/test_ray.py has one."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
import soundfile

from tests.run.support import ENGINE
from tts_batch.errors import UsageError
from tts_batch.ray import MADE, TtsBatch

Fake = Callable[..., None]
OPTIONS = {"model": "tiny-random", "engine": ENGINE, "device": "cpu"}


def test_a_batch_comes_back_in_order_with_its_clips(fake: Fake) -> None:
    fake(faults={"b": "silent"})
    batch = {
        "id": np.array(["a", "b", "c"], object),
        "sentence": np.array(["One.", "Two.", " "], object),
        "speaker": np.array(["vivian"] * 3, object),
        "score": np.array([0.5, 0.6, 0.7]),
    }
    made = TtsBatch(columns={"text": "sentence"}, format="flac", **OPTIONS)(batch)
    assert list(made) == [*batch, *MADE]
    assert made["score"].tolist() == [0.5, 0.6, 0.7]
    assert made["reason"].tolist() == ["", "silent_output", "empty_text"]
    samples, rate_hz = soundfile.read(io.BytesIO(made["audio"][0]))
    assert (rate_hz, len(samples)) == (made["sample_rate"][0], made["duration_s"][0] * rate_hz)
    assert made["audio"].tolist()[1:] == [b"", b""]


def test_the_same_batch_gives_the_same_clips_without_ids_too(fake: Fake) -> None:
    batch = {"text": np.array(["Twice.", "Twice.", "Once."], object), "speaker": np.array(["vivian"] * 3, object)}
    speak = TtsBatch(**OPTIONS)
    first, second = speak(batch), speak(batch)
    assert first["audio"].tolist() == second["audio"].tolist()
    assert first["seed"].tolist() == second["seed"].tolist()


def test_columns_that_do_not_fit_are_named(fake: Fake) -> None:
    speak = TtsBatch(**OPTIONS)
    with pytest.raises(UsageError, match="no column 'text': there are words"):
        speak({"words": np.array(["One."], object)})
    with pytest.raises(UsageError, match="'audio' already"):
        speak({"text": np.array(["One."], object), "audio": np.array([b""], object)})
