"""Where a clip lies: paths made from ids, safe on every file system, stable, and distinct for distinct ids."""

from __future__ import annotations

import io
import re
from hashlib import sha256
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

MAX_PLAIN_LENGTH = 100
_PLAIN = re.compile(r"[a-z0-9_-]([a-z0-9_.-]*[a-z0-9_-])?")
_TAGGED = re.compile(r".*__[0-9a-f]{16}")
_WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
_INT16_MAX = 32_767


def clip_name(row_id: str) -> str:
    """Return the file name, without a suffix, of the row `row_id`.

    A short id of a-z, 0-9, "_", "-" and inner dots is its own name. Any other becomes a readable remainder and 16 hex
    digits of its hash: upper case too, since "A" and "a" are one name on some disks. Only the id decides, never the
    other rows, so that a name holds for ever.
    """
    plain = len(row_id) <= MAX_PLAIN_LENGTH and _PLAIN.fullmatch(row_id) is not None
    if plain and not _TAGGED.fullmatch(row_id) and not _WINDOWS_DEVICE.fullmatch(row_id):
        return row_id
    readable = re.sub(r"[^a-z0-9_-]+", "_", row_id.lower()).strip("_")[:60] or "id"
    return f"{readable}__{_digest(row_id)[:16]}"


def clip_path(row_id: str, suffix: str = ".wav") -> str:
    """Return the path of the row's clip relative to the run folder: "ab/NAME.wav"."""
    return f"{_digest(row_id)[:2]}/{clip_name(row_id)}{suffix}"


def quarantine_path(row_id: str, attempt: int) -> str:
    """Return the path of the audio of a failed attempt, counted from 1: "quarantine/ab/NAME.1.wav"."""
    return f"quarantine/{clip_path(row_id, f'.{attempt}.wav')}"


def encode_wav(audio: NDArray[np.float32], sample_rate_hz: int) -> bytes:
    """Encode float samples [samples] as a 16-bit PCM wav file; samples beyond ±1 are clipped to it, NaN is silence."""
    pcm = np.rint(np.nan_to_num(np.clip(audio, -1.0, 1.0)) * _INT16_MAX).astype(np.int16)
    buffer = io.BytesIO()
    soundfile.write(buffer, pcm, sample_rate_hz, format="WAV", subtype="PCM_16")
    return buffer.getvalue()


def encode_codes(codes: NDArray[np.integer]) -> bytes:
    """Encode codec tokens [num_frames, 16] as an int16 .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, codes.astype(np.int16), allow_pickle=False)
    return buffer.getvalue()


def remove_clip(out: Path, row_id: str) -> None:
    """Remove what an earlier run made for the row, if anything."""
    for suffix in (".wav", ".npy"):
        (out / clip_path(row_id, suffix)).unlink(missing_ok=True)


def _digest(row_id: str) -> str:
    return sha256(row_id.encode("utf-8", "surrogatepass")).hexdigest()
