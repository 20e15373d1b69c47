"""Voices on disk: found by the next engine, made again when damaged, never a reason to fail."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.engine.asking import GREEDY, ask, hum, voice
from tts_batch.engine.generation import generate
from tts_batch.engine.native import NativeEngine
from tts_batch.engine.voices.references import References
from tts_batch.engine.voices.store import VoiceStore, encoder_digest
from tts_batch.model.qwen3_tts import Qwen3TTS


@pytest.fixture
def model(tiny_model: Callable[[str], Qwen3TTS]) -> Qwen3TTS:
    return tiny_model("base")


def counted(loads: list[str], key: str = "a"):
    def load() -> np.ndarray:
        loads.append(key)
        return hum(0.3)

    return voice(key, load=load)


def encode(model: Qwen3TTS, folder: Path, loads: list[str], *, with_codes: bool = True):
    """As a run of its own would."""
    store = VoiceStore(folder, model)
    voice = References(model, store=store).encode(counted(loads), with_codes=with_codes)
    store.flush()
    return voice


def test_the_next_run_loads_no_audio(model: Qwen3TTS, tmp_path: Path) -> None:
    loads: list[str] = []
    first = encode(model, tmp_path, loads)
    second = encode(model, tmp_path, loads)
    assert loads == ["a"]
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])
    assert first[1].dtype == second[1].dtype
    assert first[0].dtype == second[0].dtype
    (path,) = tmp_path.rglob("*.npz")
    with np.load(path) as arrays:
        assert arrays["codes"].dtype == np.int16
        assert arrays["x_vector"].dtype == np.float32
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]  # nothing half-written beside it


def test_codes_that_were_not_needed_are_added_later(model: Qwen3TTS, tmp_path: Path) -> None:
    loads: list[str] = []
    encode(model, tmp_path, loads, with_codes=False)
    encode(model, tmp_path, loads, with_codes=False)
    assert loads == ["a"]
    encode(model, tmp_path, loads)
    encode(model, tmp_path, loads)
    assert loads == ["a", "a"]


@pytest.mark.parametrize("damage", [b"", b"PK not a zip", b"compressed", None])
def test_a_damaged_file_is_made_again(
    model: Qwen3TTS, tmp_path: Path, damage: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    loads: list[str] = []
    first = encode(model, tmp_path, loads)
    (path,) = tmp_path.rglob("*.npz")
    whole = path.read_bytes()
    at = whole.index(b"NUMPY") + 140  # inside an array
    if damage is None:
        damage = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    elif damage == b"compressed":  # says the directory at the end, of what is not
        method = whole.index(b"PK\x01\x02") + 10
        damage = whole[:method] + b"\x08" + whole[method + 1 :]
    path.write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        again = encode(model, tmp_path, loads)
    assert "is encoded again" in caplog.text
    assert torch.equal(again[1], first[1])
    assert loads == ["a", "a"]
    assert path.read_bytes() == whole


def test_other_weights_and_dtypes_have_files_of_their_own(
    model: Qwen3TTS, tiny_model: Callable[[str], Qwen3TTS], tmp_path: Path
) -> None:
    assert encoder_digest(model) == encoder_digest(model)
    assert encoder_digest(model) != encoder_digest(tiny_model("custom_voice"))
    weight = model.speaker_encoder.fc.weight
    before, digest = weight.data[0, 0].clone(), encoder_digest(model)
    try:
        weight.data[0, 0] += 1e-3
        assert encoder_digest(model) != digest
    finally:
        weight.data[0, 0] = before
    assert encoder_digest(model) == digest


def test_a_folder_that_cannot_be_written_is_said_once(
    model: Qwen3TTS, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    loads: list[str] = []
    store = VoiceStore(tmp_path / "file", model)
    references = References(model, store=store)
    for key in ("a", "b"):
        assert references.encode(counted(loads, key), with_codes=True)[1] is not None
    assert loads == ["a", "b"]
    assert caplog.text.count("are not kept") == 1


def test_engines_share_voices_through_the_cache_folder(open_tiny: Callable[..., NativeEngine], tmp_path: Path) -> None:
    loads: list[str] = []
    codes = []
    for _ in range(2):
        engine = open_tiny("base", cache_dir=str(tmp_path))
        (result,) = generate(engine, [ask(task="base", reference=counted(loads), sampling=GREEDY)])
        codes.append(result.codes)
        engine.close()
    assert loads == ["a"]
    assert np.array_equal(*codes)
    assert len(list(tmp_path.rglob("*.npz"))) == 1
