"""Encoded voices on disk, across runs: one small file for each, by content key, encoder weights and dtype.

An unreadable file is written again. No error of the disk fails a request.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tts_batch.engine.code2wav.decode_pool import HostCopy

if TYPE_CHECKING:
    from tts_batch.model.qwen3_tts import Qwen3TTS

logger = logging.getLogger(__name__)

FLUSH_S = 5.0
VERSION = 1  # of the files, and of how audio is made ready for the encoders


class VoiceStore:
    """x-vectors float32 [H] and codes int16 [frames, 16] under a folder. Used from one thread."""

    def __init__(self, folder: Path, model: Qwen3TTS) -> None:
        """For the voices of a Base model."""
        assert model.speaker_encoder is not None
        weight = model.speaker_encoder.fc.weight
        self._device, self._dtype = weight.device, weight.dtype
        dtype = str(self._dtype).removeprefix("torch.")
        self._folder = folder / f"v{VERSION}-{encoder_digest(model)}-{dtype}"
        self._pending: list[tuple[str, HostCopy, HostCopy | None]] = []
        self._is_writable = True

    def holds(self, key: str) -> bool:
        """Whether there is a file of this voice (which may turn out not to be readable)."""
        return os.path.exists(self._path(key))  # False without permission, where Path.exists raises

    def load(self, key: str) -> tuple[Tensor, Tensor | None] | None:
        """A voice as the encoders give it: x-vector, and codes if they were ever needed. None if it is not here."""
        path = self._path(key)
        try:
            with np.load(path, allow_pickle=False) as arrays:
                x_vector = torch.from_numpy(arrays["x_vector"]).to(self._device, self._dtype)
                codes = torch.from_numpy(arrays["codes"]).to(self._device) if "codes" in arrays else None
        except (FileNotFoundError, NotADirectoryError):
            return None
        except Exception as error:  # a damaged archive raises almost anything
            logger.warning("the voice in %s cannot be read (%s) and is encoded again", path, error)
            return None
        return x_vector, codes

    def save(self, key: str, x_vector: Tensor, codes: Tensor | None) -> None:
        """Write a voice once its copy has come from the device, with a later `save` or with `flush`."""
        self._pending.append(
            (key, HostCopy(x_vector.float()), None if codes is None else HostCopy(codes.to(torch.int16)))
        )
        self._write_done()

    def flush(self) -> None:
        """Write all that was saved, except copies that the device does not finish in time."""
        deadline_s = time.monotonic() + FLUSH_S
        self._write_done()
        while self._pending and time.monotonic() < deadline_s:
            time.sleep(0.001)
            self._write_done()

    def _write_done(self) -> None:
        done = [entry for entry in self._pending if entry[1].is_done and (entry[2] is None or entry[2].is_done)]
        self._pending = [entry for entry in self._pending if entry not in done]
        for key, x_vector, codes in done:
            arrays = {"x_vector": x_vector.numpy()} | ({} if codes is None else {"codes": codes.numpy()})
            if self._is_writable:
                self._write_file(self._path(key), arrays)

    def _write_file(self, path: Path, arrays: dict[str, NDArray]) -> None:
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("wb") as file:
                np.savez(file, **arrays)
            aside.replace(path)
        except OSError as error:
            self._is_writable = False
            with suppress(OSError):
                aside.unlink()
            logger.warning("voices are not kept for later runs: %s", error)

    def _path(self, key: str) -> Path:
        name = hashlib.sha256(key.encode()).hexdigest()
        return self._folder / name[:2] / f"{name}.npz"


def encoder_digest(model: Qwen3TTS) -> str:
    """A digest of the weights that make a voice of audio: the speaker encoder's and the codec encoder's."""
    digest = hashlib.blake2b(digest_size=10)
    for module in (model.speaker_encoder, model.speech_tokenizer.encoder):
        if module is not None:
            for name, tensor in module.state_dict().items():
                digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
                digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
