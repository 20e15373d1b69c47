"""Fingerprints, equal for equal audio: of rows, to find finished work; of runs, to refuse mixed settings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

from tts_batch.config import JobConfig
from tts_batch.engine.request import SamplingParams
from tts_batch.model.checkpoint import FILES, Checkpoint
from tts_batch.records import Row

SEMANTICS = 1  # raise it when the audio of a request changes: sampling, noise, prompt, seams between decoded chunks

# Settings that never change the audio of a row. A new setting counts until it is named here.
_SILENT_SETTINGS = {
    *("data", "map", "encoding", "limit", "shard", "strict", "audio_root", "allow_url", "out", "keep_failed_audio"),
    *("attempts", "retry_changes_seed", "takes", "row_time_limit", "redo", "overwrite", "allow_mixed", "progress"),
    *("extend", "prune", "skip_existing", "ray_address"),
    *("device", "gpus", "launcher", "profile", "placement", "max_num_seqs", "cuda_graph", "stall_timeout"),
    *("model", "model_revision"),  # identified by its weights, not by its path
}

# Optional steps: their settings count only in runs that use them, so that other fingerprints stay as they were.
_OPTIONAL: dict[str, tuple[str, ...]] = {
    "split_text": ("split_text", "split_pause_s"),
    "trim": ("trim", "trim_margin_s"),
    "engine_options": ("engine_options",),
}

_SAMPLES, _SAMPLE_BYTES = 64, 1 << 16


def weights_identity(checkpoint: Checkpoint) -> str:
    """Return a hash of the model's content, independent of its path and name.

    Small files count whole; of weights, the header and 64 samples of 64 KiB: any training changes all of them.
    """
    digest = blake2b(digest_size=16)
    for name in FILES:
        digest.update(f"{name}\x1f".encode())
        _hash_file(checkpoint.path / name, digest)
    return digest.hexdigest()


def _hash_file(path: Path, digest: blake2b) -> None:
    size = path.stat().st_size
    digest.update(size.to_bytes(8, "big"))
    with path.open("rb") as source:
        if size <= _SAMPLES * _SAMPLE_BYTES:
            digest.update(source.read())
            return
        for i in range(_SAMPLES):
            source.seek((size - _SAMPLE_BYTES) * i // (_SAMPLES - 1))
            digest.update(source.read(_SAMPLE_BYTES))


def run_settings(config: JobConfig, weights: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a run that change its audio, as JSON values.

    `weights` gives the identity of the model of each task that the run uses.
    """
    unused = {name for option, names in _OPTIONAL.items() if not getattr(config, option) for name in names}
    settings = config.model_dump(mode="json", exclude=_SILENT_SETTINGS | unused)
    return {**settings, **{f"weights_{task}": identity for task, identity in weights.items()}, "semantics": SEMANTICS}


def run_fingerprint(settings: Mapping[str, Any]) -> str:
    """Return the hash of `run_settings`."""
    return blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=16).hexdigest()


def differing_keys(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return the settings in which two runs differ, sorted."""
    return sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key))


class RowFingerprints:
    """The fingerprints of the rows of one model in one run."""

    def __init__(self, config: JobConfig, weights: str, sampling: SamplingParams) -> None:
        self._common = blake2b(digest_size=16)
        common = (SEMANTICS, weights, config.engine, config.runner, config.dtype, asdict(sampling))
        self._common.update(json.dumps(common, sort_keys=True).encode())
        if config.trim:
            self._common.update(f"trim {config.trim_margin_s}".encode())
        if config.engine_options:
            self._common.update(json.dumps(sorted(config.engine_options.items())).encode())
        self._pause_s = config.split_pause_s

    def of(
        self,
        row: Row,
        *,
        voice_key: str | None,
        non_streaming: bool,
        max_frames: int,
        seed: int,
        pieces: Iterable[tuple[str, int]] = (),
    ) -> str:
        """Return the hash of everything that decides the row's audio, which its id and labels do not.

        `pieces`: text and budget of each, where the text is split.
        """
        ref_text = None if row.x_vector_only else row.ref_text
        sound = (row.task, row.text, row.language, row.speaker, row.instruct, voice_key, ref_text)
        digest = self._common.copy()
        digest.update(json.dumps((*sound, row.x_vector_only, non_streaming, max_frames, seed)).encode())
        if pieces := list(pieces):
            digest.update(json.dumps((pieces, self._pause_s)).encode())
        return digest.hexdigest()
