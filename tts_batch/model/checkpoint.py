"""Resolves a checkpoint folder or hub id to files and configuration. Loads no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tts_batch.model.config import CodecConfig, ConfigError, ModelConfig, generation_from_json, read_json

OFFICIAL = {
    "base": "Qwen/Qwen3-TTS-12Hz-1.7B-Base",
    "custom_voice": "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
    "voice_design": "Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign",
}
"""The default checkpoint of each task: the largest released."""

FILES = (
    "config.json",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    "model.safetensors",
    "speech_tokenizer/config.json",
    "speech_tokenizer/model.safetensors",
)
"""The files that a checkpoint must have."""


class CheckpointError(Exception):
    """A model that is unavailable or not a Qwen3-TTS checkpoint. The message names the options."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk with its configuration."""

    path: Path
    name: str  # as the user gave it
    revision: str | None  # commit of the hub snapshot; None for a folder
    config: ModelConfig
    codec: CodecConfig
    generation: dict[str, Any]  # the ten official generation fields


def resolve_checkpoint(model: str, revision: str | None = None) -> Checkpoint:
    """Find a checkpoint folder, or fetch a hub id into the Hugging Face cache (HF_HUB_OFFLINE is respected).

    Raises CheckpointError when it is unavailable, lacks a file, or its configuration is not Qwen3-TTS 12 Hz.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return _read_checkpoint(folder, model, None)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", model) or model.startswith("."):
        raise CheckpointError(f"model {model!r} is neither a folder nor a hub id ORG/NAME. {_options()}")
    folder = _fetch(model, revision)
    return _read_checkpoint(folder, model, folder.name)


def _fetch(repo_id: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    try:
        # Everything that the official package loads too, so that the two can be compared.
        return Path(snapshot_download(repo_id, revision=revision, allow_patterns=["*.json", "*.txt", "*.safetensors"]))
    except (OSError, ValueError) as error:  # hub errors are OSErrors
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise CheckpointError(f"model {repo_id!r} is unavailable from the hub: {reason}. {_options()}") from error


def _read_checkpoint(folder: Path, name: str, revision: str | None) -> Checkpoint:
    missing = [file for file in FILES if not (folder / file).is_file()]
    if missing:
        raise CheckpointError(f"model {name!r}: {folder} lacks {', '.join(missing)}. {_options()}")
    try:
        return Checkpoint(
            path=folder,
            name=name,
            revision=revision,
            config=ModelConfig.from_json(read_json(folder / "config.json")),
            codec=CodecConfig.from_json(read_json(folder / "speech_tokenizer" / "config.json")),
            generation=generation_from_json(read_json(folder / "generation_config.json")),
        )
    except ConfigError as error:
        raise CheckpointError(f"model {name!r} is not a usable Qwen3-TTS checkpoint: {error}") from error


def _options() -> str:
    small = [name.replace("1.7B", "0.6B") for kind, name in OFFICIAL.items() if kind != "voice_design"]
    known = ", ".join([*OFFICIAL.values(), *small])
    return f"Give a folder with a downloaded checkpoint, 'tiny' or 'tiny-random', or one of {known}."
