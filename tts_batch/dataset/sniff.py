"""What a file is by its first bytes, and the second decoder for what libsndfile does not read."""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class FileKind:
    """What a file seems to be."""

    name: str
    may_be_audio: bool = True

    def __str__(self) -> str:
        return self.name


# (offset, magic, kind)
_MAGIC: tuple[tuple[int, bytes, FileKind], ...] = (
    (8, b"WAVE", FileKind("a WAV file")),
    (0, b"RF64", FileKind("a WAV file")),
    (0, b"fLaC", FileKind("a FLAC file")),
    (0, b"OggS", FileKind("an Ogg file")),
    (0, b"ID3", FileKind("an MP3 file")),
    (0, b"\xff\xfb", FileKind("an MP3 file")),
    (0, b"\xff\xf1", FileKind("an AAC file")),
    (0, b"\xff\xf9", FileKind("an AAC file")),
    (4, b"ftyp", FileKind("an MP4 or M4A file")),
    (0, b"\x1aE\xdf\xa3", FileKind("a Matroska or WebM file")),
    (0, b"\x30\x26\xb2\x75", FileKind("a WMA file")),
    (8, b"AIFF", FileKind("an AIFF file")),
    (0, b"PK\x03\x04", FileKind("a ZIP archive", may_be_audio=False)),
    (0, b"\x1f\x8b", FileKind("a gzip archive", may_be_audio=False)),
    (0, b"\x89PNG", FileKind("a PNG image", may_be_audio=False)),
    (0, b"\xff\xd8\xff", FileKind("a JPEG image", may_be_audio=False)),
    (0, b"%PDF", FileKind("a PDF document", may_be_audio=False)),
    (0, b"\x93NUMPY", FileKind("a NumPy array", may_be_audio=False)),
    (0, b"version https://git-lfs", FileKind("a Git LFS pointer", may_be_audio=False)),
)


def sniff(data: bytes) -> FileKind:
    """Name the kind of file that `data`, or its first bytes, seems to be."""
    if not data:
        return FileKind("an empty file", may_be_audio=False)
    for offset, magic, kind in _MAGIC:
        if data.startswith(magic, offset):
            return kind
    head = data[:512].lstrip().lower()
    if head.startswith((b"<!doctype html", b"<html", b"<?xml", b"<")):
        return FileKind("a web page", may_be_audio=False)
    if head.startswith((b"{", b"[")):
        return FileKind("JSON", may_be_audio=False)
    if not set(data[:512]) & (set(range(9)) | set(range(14, 32))):
        return FileKind("text", may_be_audio=False)
    return FileKind("a file of unknown kind")


def decode_with_audioread(data: bytes, max_s: float) -> tuple[NDArray[np.float32], int] | None:
    """Decode up to just over `max_s` seconds with ffmpeg or what else audioread finds.

    Returns (float32 [channels, samples], rate in hertz), or None when no decoder can.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it imports aifc, which Python 3.11 deprecates
        import audioread
        import audioread.exceptions

        with tempfile.NamedTemporaryFile(prefix="tts-batch-") as copy:
            copy.write(data)
            copy.flush()
            try:
                with audioread.audio_open(copy.name) as source:
                    return _read_blocks(source, max_s), int(source.samplerate)
            except (audioread.exceptions.DecodeError, EOFError, OSError):
                return None


def _read_blocks(source: Any, max_s: float) -> NDArray[np.float32]:
    limit_bytes = int((max_s + 1) * source.samplerate) * source.channels * 2
    data = bytearray()
    for block in source:
        data += block
        if len(data) > limit_bytes:
            break
    return np.frombuffer(data, "<i2").reshape(-1, source.channels).T.astype(np.float32) / np.float32(32768)
