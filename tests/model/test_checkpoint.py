"""Finding checkpoints: folders, the hub's cache, and errors that name the next step."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tts_batch.model.checkpoint import FILES, OFFICIAL, CheckpointError, resolve_checkpoint
from tts_batch.model.tiny import build_tiny


def test_a_folder() -> None:
    folder = build_tiny("tiny-random", "custom_voice")
    checkpoint = resolve_checkpoint(str(folder))
    assert (checkpoint.path, checkpoint.revision, checkpoint.config.kind) == (folder, None, "custom_voice")
    assert list(checkpoint.config.speakers)[:2] == ["serena", "vivian"]
    assert checkpoint.config.supported_languages[0] == "auto"
    assert checkpoint.generation["max_new_tokens"] == 8192
    assert checkpoint.codec.encoder_valid_num_quantizers == 16


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_named(tmp_path: Path, file: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(build_tiny("tiny-random", "base"), folder)
    (folder / file).unlink()
    with pytest.raises(CheckpointError, match=file.replace(".", r"\.")):
        resolve_checkpoint(str(folder))


def test_a_broken_configuration_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(build_tiny("tiny-random", "base"), folder)
    (folder / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"config\.json: tts_model_type is missing"):
        resolve_checkpoint(str(folder))


@pytest.mark.parametrize("model", ["nowhere", "./nowhere/at all", "a/b/c", "", OFFICIAL["base"]])
def test_an_unavailable_model_lists_the_options(model: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        resolve_checkpoint(model)
    for option in ("tiny", *OFFICIAL.values()):
        assert option in str(caught.value)


def test_a_cached_hub_model_is_found_offline_at_its_revision(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repo = tmp_path / "models--someone--some-voice"
    shutil.copytree(build_tiny("tiny-random", "base"), repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    program = (
        "import sys; from tts_batch.model.checkpoint import resolve_checkpoint;"
        "found = resolve_checkpoint('someone/some-voice');"
        "print(found.name, found.revision, found.path.name, 'torch' in sys.modules)"
    )
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    printed = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    ).stdout
    assert printed.split() == ["someone/some-voice", commit, commit, "False"]
