"""What a file is by its first bytes, and the second decoder for what libsndfile does not read."""

from __future__ import annotations

import io
import shutil
import subprocess
import tempfile
from dataclasses import dataclass

import numpy as np
import soundfile
from numpy.typing import NDArray

FFMPEG_TIMEOUT_S = 60.0
_MAX_DECODED_BYTES = 400_000_000
_CONTROLS = frozenset(range(9)) | frozenset(range(14, 32))
# Formats that hold their sound themselves: a playlist would send ffmpeg to other files.
_FFMPEG_FORMATS = (
    "aac,ac3,adx,aiff,amr,ape,asf,au,avi,caf,dsf,dts,eac3,flac,flv,matroska,mov,mp3,mpeg,mpegts,mxf,nut,ogg,rm,tta,"
    "truehd,voc,w64,wav,wv,xwma"
)


@dataclass(frozen=True, slots=True)
class FileKind:
    """What a file seems to be."""

    name: str
    may_be_audio: bool = True
    may_be_text: bool = False

    def __str__(self) -> str:
        return self.name


UNKNOWN = FileKind("a file of unknown kind", may_be_text=True)

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
    (0, b"BZh", FileKind("a bzip2 archive", may_be_audio=False)),
    (0, b"\x28\xb5\x2f\xfd", FileKind("a zstd archive", may_be_audio=False)),
    (0, b"\xfd7zXZ\0", FileKind("an xz archive", may_be_audio=False)),
    (0, b"\xd0\xcf\x11\xe0", FileKind("an old Excel or Word document", may_be_audio=False)),
    (0, b"{\\rtf", FileKind("an RTF document", may_be_audio=False)),
    (0, b"PAR1", FileKind("a Parquet file", may_be_audio=False)),
    (0, b"ARROW1", FileKind("an Arrow file", may_be_audio=False)),
    (0, b"SQLite format 3", FileKind("an SQLite database", may_be_audio=False)),
    (0, b"\x89PNG", FileKind("a PNG image", may_be_audio=False)),
    (0, b"\xff\xd8\xff", FileKind("a JPEG image", may_be_audio=False)),
    (0, b"%PDF", FileKind("a PDF document", may_be_audio=False)),
    (0, b"\x93NUMPY", FileKind("a NumPy array", may_be_audio=False)),
    (0, b"version https://git-lfs", FileKind("a Git LFS pointer", may_be_audio=False)),
)


def sniff(data: bytes) -> FileKind:
    """Name the kind of file that `data`, or its first bytes, seems to be."""
    if not data:
        return FileKind("an empty file", may_be_audio=False, may_be_text=True)
    for offset, magic, kind in _MAGIC:
        if data.startswith(magic, offset):
            return kind
    head = data[:512].lstrip().lower()
    if head.startswith((b"<!doctype", b"<html", b"<table", b"<head")):
        return FileKind("a web page", may_be_audio=False)
    if head.startswith(b"<"):
        return FileKind("a web page", may_be_audio=False, may_be_text=True)
    if head.startswith((b"{", b"[")):
        return FileKind("JSON", may_be_audio=False, may_be_text=True)
    if not has_controls(data):
        return FileKind("text", may_be_audio=False, may_be_text=True)
    return UNKNOWN


def has_controls(data: bytes) -> bool:
    """Whether the first bytes of `data` hold control characters that texts do not."""
    return not _CONTROLS.isdisjoint(data[:512])


def find_ffmpeg() -> str | None:
    """Return the path of the ffmpeg program, None where it is not installed."""
    return shutil.which("ffmpeg")


def decode_with_ffmpeg(data: bytes, max_s: float) -> tuple[NDArray[np.float32], int] | None:
    """Decode up to just over `max_s` seconds with the ffmpeg program.

    Returns (float32 [channels, samples], rate in hertz), or None when there is no ffmpeg or it cannot.
    """
    ffmpeg = find_ffmpeg()
    if ffmpeg is None:
        return None
    with tempfile.NamedTemporaryFile(prefix="tts-batch-") as copy:  # a file, for MP4 may have its index at the end
        copy.write(data)
        copy.flush()
        allowed = ["-protocol_whitelist", "file", "-format_whitelist", _FFMPEG_FORMATS]
        source = ["-nostdin", "-v", "error", *allowed, "-i", copy.name]
        target = [
            "-map",
            "0:a:0",
            "-t",
            str(max_s + 1),
            "-fs",
            str(_MAX_DECODED_BYTES),
            "-c:a",
            "pcm_f32le",
            "-f",
            "wav",
            "pipe:1",
        ]
        try:
            wav = subprocess.run([ffmpeg, *source, *target], capture_output=True, timeout=FFMPEG_TIMEOUT_S, check=True)
            samples, rate_hz = soundfile.read(io.BytesIO(wav.stdout), dtype="float32", always_2d=True)
        except (OSError, subprocess.SubprocessError, soundfile.SoundFileError):
            return None
    return samples.T, int(rate_hz)
