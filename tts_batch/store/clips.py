"""Paths and encoding of clips: names made from ids, valid on every file system, stable, and distinct."""

from __future__ import annotations

import io
import re
import struct
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
import soundfile
from numpy.typing import NDArray

from tts_batch.choices import Format
from tts_batch.errors import RowError, UsageError

if TYPE_CHECKING:
    from tts_batch.engine.request import SpeechResult

MAX_PLAIN_LENGTH = 100
_PLAIN = re.compile(r"[a-z0-9_-]([a-z0-9_.-]*[a-z0-9_-])?")
_TAGGED = re.compile(r".*__[0-9a-f]{16}")
_WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
_INT16_MAX = 32_767
_WRITE_SAMPLES = 1 << 16


def clip_name(row_id: str) -> str:
    """Return the file name, without a suffix, of the row `row_id`.

    A short id of a-z, 0-9, "_", "-" and inner dots is its own name. Any other becomes a readable remainder and 16 hex
    digits of its hash: upper case too, since "A" and "a" are one name on some disks. The name depends only on the id,
    so that it never changes with the other rows.
    """
    plain = len(row_id) <= MAX_PLAIN_LENGTH and _PLAIN.fullmatch(row_id) is not None
    if plain and not _TAGGED.fullmatch(row_id) and not _WINDOWS_DEVICE.fullmatch(row_id):
        return row_id
    readable = re.sub(r"[^a-z0-9_-]+", "_", row_id.lower()).strip("_")[:60] or "id"
    return f"{readable}__{_digest(row_id)[:16]}"


def clip_path(row_id: str, suffix: str = ".wav") -> str:
    """Return the path of the row's clip relative to the run folder: "ab/NAME.wav"."""
    return f"{_digest(row_id)[:2]}/{clip_name(row_id)}{suffix}"


def quarantine_path(row_id: str, attempt: int, piece: int | None = None) -> str:
    """Return the path of the audio of a failed attempt, or of a piece, from 1: "quarantine/ab/NAME.piece2.1.wav"."""
    suffix = f".{attempt}.wav" if piece is None else f".piece{piece}.{attempt}.wav"
    return f"quarantine/{clip_path(row_id, suffix)}"


@dataclass(frozen=True, slots=True)
class Container:
    """A format as libsndfile names it, and the suffix of its files."""

    suffix: str
    format: str
    subtype: str
    lossless: bool = True


CONTAINERS: dict[Format, Container] = {
    "wav": Container(".wav", "WAV", "PCM_16"),
    "wav24": Container(".wav", "WAV", "PCM_24"),
    "wavf32": Container(".wav", "WAV", "FLOAT"),
    "flac": Container(".flac", "FLAC", "PCM_16"),
    "mp3": Container(".mp3", "MP3", "MPEG_LAYER_III", lossless=False),
    "opus": Container(".opus", "OGG", "OPUS", lossless=False),
}
SUFFIXES = tuple(dict.fromkeys(container.suffix for container in CONTAINERS.values()))


def check_format(name: Format) -> None:
    """Raise UsageError when the installed libsndfile cannot write a format."""
    container = CONTAINERS[name]
    if not soundfile.check_format(container.format, container.subtype):
        can = [known for known, other in CONTAINERS.items() if soundfile.check_format(other.format, other.subtype)]
        version = soundfile.__libsndfile_version__
        raise UsageError(f"--format {name} needs a newer libsndfile than {version}, which writes {', '.join(can)}.")


def encode_clip(audio: NDArray[np.float32], sample_rate_hz: int, name: Format) -> bytes:
    """Encode float32 samples [samples]. They are clipped to ±1, except for "wavf32"; NaN becomes 0.

    Raises RowError(write_failed) for what the format cannot hold: Opus has five sample rates.
    """
    container = CONTAINERS[name]
    samples: NDArray[np.generic] = np.nan_to_num(audio)
    if container.subtype != "FLOAT":
        samples = np.clip(samples, -1.0, 1.0)
    if container.subtype == "PCM_16":
        samples = np.rint(samples * _INT16_MAX).astype("<i2")
    if name == "wav":  # the default, three times as fast as libsndfile
        return _wav_header(samples.nbytes, sample_rate_hz) + samples.tobytes()
    buffer = io.BytesIO()
    try:
        with soundfile.SoundFile(buffer, "w", sample_rate_hz, 1, container.subtype, format=container.format) as file:
            for start in range(0, len(samples), _WRITE_SAMPLES):  # long writes overflow libsndfile's stack
                file.write(samples[start : start + _WRITE_SAMPLES])
    except soundfile.LibsndfileError as error:
        message = (
            f"The clip cannot be encoded as {name} at {sample_rate_hz} Hz ({error.error_string}): use --format wav."
        )
        raise RowError("write_failed", message) from error
    return buffer.getvalue()


def _wav_header(num_bytes: int, sample_rate_hz: int) -> bytes:
    """Return the header of 16-bit mono samples of `num_bytes`."""
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, sample_rate_hz, 2 * sample_rate_hz, 2, 16)
    data = struct.pack("<4sI", b"data", num_bytes)
    return struct.pack("<4sI4s", b"RIFF", 4 + len(form) + len(data) + num_bytes, b"WAVE") + form + data


def encode_wav(audio: NDArray[np.float32], sample_rate_hz: int) -> bytes:
    """Encode float samples [samples] as a 16-bit PCM wav file."""
    return encode_clip(audio, sample_rate_hz, "wav")


def encode_codes(codes: NDArray[np.integer]) -> bytes:
    """Encode codec tokens [num_frames, 16] as an int16 .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, codes.astype(np.int16), allow_pickle=False)
    return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class ClipFiles:
    """The bytes of a clip's file, and of its codes' file if they are saved."""

    audio: bytes
    audio_digest: str
    codes: bytes | None = None
    codes_digest: str | None = None


def encode_files(result: SpeechResult, name: Format, save_codes: bool) -> ClipFiles:
    """Encode the audio of a good result in a format, and its codes with `save_codes`."""
    assert result.audio is not None, "find_fault has seen it"
    audio = encode_clip(result.audio, result.sample_rate, name)
    if not save_codes or result.codes is None:
        return ClipFiles(audio, digest_of(audio))
    codes = encode_codes(result.codes)
    return ClipFiles(audio, digest_of(audio), codes, digest_of(codes))


def digest_of(clip: bytes) -> str:
    """Return a checksum that shows whether a file has changed."""
    return f"{crc32(clip):08x}"


def clip_files(row_id: str) -> list[str]:
    """Return every name that a file of the row's clip, or of its codes, may have."""
    return [clip_path(row_id, suffix) for suffix in (*SUFFIXES, ".npy")]


def _digest(row_id: str) -> str:
    return sha256(row_id.encode("utf-8", "surrogatepass")).hexdigest()
