"""Reference recordings: what a file is, how long it is, and its samples as the model takes them."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from io import BufferedReader, BytesIO, FileIO
from typing import Any, BinaryIO

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from tts_batch.dataset.cells import printable, quote
from tts_batch.dataset.near_files import near_file
from tts_batch.dataset.segments import Segment, split_segment
from tts_batch.dataset.sniff import decode_with_ffmpeg, find_ffmpeg, sniff
from tts_batch.errors import RowError
from tts_batch.records import RefAudio

SAMPLE_RATE_HZ = 24_000
MIN_REFERENCE_S = 0.5  # below: refused; the speaker encoder needs a voice, not a click
SHORT_REFERENCE_S = 3.0  # below: warned of; the model is made for clips of 3 s and more
LONG_REFERENCE_S = 30.0  # above: warned of; clones get worse
MAX_REFERENCE_S = 120.0  # above: refused; audio is never cut under a whole transcript
MAX_CHANNELS = 32
MAX_SAMPLES = 100_000_000  # of all channels: 400 MB in memory, 120 s of eight channels at 96 kHz
SEGMENT_SLACK_S = 0.5  # that a segment may end after its recording: lengths in lists are rounded
CANCELLED_POWER = 0.1  # of the power that an average of independent channels has: below, they cancel each other
SILENT_PEAK = 1e-4  # -80 dBFS beside any constant offset: dither, not speech
QUIET_PEAK = 0.01  # -40 dBFS
_HEADER_BYTES = 4096  # at most, of a file without sound
_LONG_PATH_CHARS = 255  # more is seldom a path, and often base64

log = logging.getLogger(__name__)


def probe_reference(ref: RefAudio) -> float | None:
    """Return the length in seconds by the header, None where only decoding tells.

    Raises RowError: ref_missing, ref_unreadable (not a file, empty, or clearly not audio), ref_too_short, ref_too_long.
    """
    if ref.path is not None:
        return _probe_file(*_version(ref))
    if ref.array is not None:
        return _check_length(max(np.shape(ref.array), default=0) / _rate_hz(ref))
    return _probe(BytesIO(ref.data or b""), None)


def content_key(ref: RefAudio) -> str:
    """Return sha256 of the reference's content, in hex: equal keys are the same voice whatever the labels say.

    A file is hashed once for each path, size and modification time. Raises RowError(ref_missing, ref_unreadable).
    """
    if ref.path is None:
        return ref.label.removeprefix("sha256:")
    path, size_bytes, mtime_ns, segment = _version(ref)
    key = _file_key(path, size_bytes, mtime_ns)
    return key if segment is None else hashlib.sha256(f"{key}{segment.fragment}".encode()).hexdigest()


def examine_reference(ref: RefAudio) -> tuple[float | None, str]:
    """Return what `probe_reference` and `content_key` do; raises as they do."""
    return probe_reference(ref), content_key(ref)


def load_reference(ref: RefAudio) -> NDArray[np.float32]:
    """Return float32 mono [samples] at 24 kHz, never clipped, never cut.

    Raises RowError: ref_missing, ref_unreadable, ref_too_short, ref_too_long, ref_non_finite, ref_silent. Warnings on
    short, long, quiet and over-loud recordings go to the log.
    """
    samples, rate_hz = _decode(ref)
    if not samples.size:
        _check_length(0.0)
    mono = to_mono(samples, ref.label)
    if not np.isfinite(mono).all():
        raise RowError(
            "ref_non_finite", f"ref_audio {printable(ref.label)} holds NaN or infinite samples: export it again."
        )
    _check_length(mono.size / rate_hz)
    _warn_length(mono.size / rate_hz, ref)
    return resample(_check_level(mono, ref), rate_hz)


def resample(mono: NDArray[np.float32], rate_hz: int) -> NDArray[np.float32]:
    """Return `mono` [samples] at 24 kHz, exactly as librosa.resample(res_type="soxr_hq") does.

    soxr is called directly because librosa compiles for many seconds in every process that first resamples.
    """
    if rate_hz == SAMPLE_RATE_HZ:
        return mono
    num_samples = math.ceil(mono.size * (float(SAMPLE_RATE_HZ) / rate_hz))
    out = np.asarray(soxr.resample(mono, rate_hz, SAMPLE_RATE_HZ, quality="soxr_hq"), dtype=np.float32)
    return np.pad(out[:num_samples], (0, max(0, num_samples - out.size)))


def to_mono(samples: NDArray[Any], label: str = "") -> NDArray[np.float32]:
    """Average the channels of [samples], [channels, samples] or [samples, channels]; integers are scaled by range.

    Of channels that cancel each other, as those of a miswired cable do, the loudest is taken, and the log says so.
    Raises RowError(ref_unreadable) for any other shape.
    """
    if samples.ndim == 2:
        # Channels are the short side; librosa too averages channels-first.
        channels = samples if samples.shape[0] <= samples.shape[1] else samples.T
        if channels.shape[0] > MAX_CHANNELS:
            raise RowError(
                "ref_unreadable", f"ref_audio has the shape {samples.shape}: that is not channels and samples."
            )
        return _average(_to_float(channels), label)
    if samples.ndim != 1:
        raise RowError(
            "ref_unreadable", f"ref_audio has {samples.ndim} dimensions: samples have one, or two with channels."
        )
    return _to_float(samples)


def _average(channels: NDArray[np.float32], label: str) -> NDArray[np.float32]:
    mono = np.asarray(channels.mean(axis=0), dtype=np.float32)
    if len(channels) == 1 or not channels.size:
        return mono
    powers = np.asarray([float(channel.var(dtype=np.float64)) for channel in channels])
    independent = powers.sum() / len(channels) ** 2  # the power of the average, had they nothing in common
    if not float(mono.var(dtype=np.float64)) < CANCELLED_POWER * independent:
        return mono
    loudest = int(powers.argmax())
    log.warning(
        "the channels of ref_audio %s are in opposite phase and cancel each other: only channel %d is used",
        printable(label),
        loudest + 1,
    )
    return np.ascontiguousarray(channels[loudest])


def _to_float(samples: NDArray[Any]) -> NDArray[np.float32]:
    kind = samples.dtype
    if kind.kind == "f":
        return samples.astype(np.float32)
    if kind.kind == "u":
        half = 2.0 ** (8 * kind.itemsize - 1)
        return ((samples.astype(np.float64) - half) / half).astype(np.float32)
    # Plain Python numbers arrive as int64, which no recording is: take the smallest usual width that holds them.
    width = next(
        (bits for bits in (16, 32) if np.abs(samples, dtype=np.float64).max(initial=0) <= 2.0 ** (bits - 1)), 64
    )
    bits = width if kind.itemsize == 8 else 8 * kind.itemsize
    return (samples / 2.0 ** (bits - 1)).astype(np.float32)


def _decode(ref: RefAudio) -> tuple[NDArray[Any], int]:
    if ref.array is not None:
        return np.asarray(ref.array), _rate_hz(ref)
    if ref.path is not None:
        path, size_bytes, _, segment = _version(ref)
        _refuse_empty(size_bytes)
        with _open(path) as source:
            return _decode_file(source, ref.label, segment)
    return _decode_file(BytesIO(ref.data or b""), ref.label, None)


def decode_bytes(data: bytes, label: str, segment: Segment) -> tuple[NDArray[Any], int]:
    """Return (samples [channels, samples], rate in hertz) of a part of an encoded recording.

    Raises RowError(ref_unreadable, ref_too_short).
    """
    return _decode_file(BytesIO(data), label, segment)


def _decode_file(source: BinaryIO, label: str, segment: Segment | None) -> tuple[NDArray[Any], int]:
    try:
        with soundfile.SoundFile(source) as sound:
            rate_hz = int(sound.samplerate)
            first, limit = 0, int(MAX_REFERENCE_S * rate_hz) + 1  # one sample more than allowed is enough to refuse
            _refuse_unsized(sound.frames, source)
            if segment is not None:
                first, last = frames_of(segment, sound.frames, rate_hz)
                limit = min(limit, last - first)
            _refuse_too_much(min(limit, sound.frames) * sound.channels, sound.channels, rate_hz)
            if first:
                sound.seek(first)
            return sound.read(limit, dtype="float32", always_2d=True).T, rate_hz
    except (soundfile.SoundFileError, RuntimeError) as error:
        source.seek(0)
        data = source.read()
        found = sniff(data)
        decoded = _decode_otherwise(data, segment) if found.may_be_audio else None
        if decoded is None:
            install = "install ffmpeg, or " if found.may_be_audio and find_ffmpeg() is None else ""
            why = getattr(error, "error_string", error)  # of libsndfile: the whole names a Python object
            raise RowError(
                "ref_unreadable",
                f"ref_audio {printable(label)} is {found} that cannot be decoded ({why}): {install}save it as WAV or "
                "FLAC.",
            ) from error
        return decoded


def _refuse_unsized(num_frames: int, source: BinaryIO) -> None:
    """Raise RuntimeError for a stream whose header was never given its length, which libsndfile takes for no sound."""
    if not num_frames and source.seek(0, os.SEEK_END) > _HEADER_BYTES:
        raise RuntimeError("its header says that it holds no samples")


def _decode_otherwise(data: bytes, segment: Segment | None) -> tuple[NDArray[Any], int] | None:
    if segment is None:
        return decode_with_ffmpeg(data, MAX_REFERENCE_S)
    end_s = segment.start_s + MAX_REFERENCE_S if segment.end_s is None else segment.end_s
    decoded = decode_with_ffmpeg(data, end_s)
    if decoded is None:
        return None
    samples, rate_hz = decoded
    first, last = frames_of(segment, samples.shape[1], rate_hz)
    return samples[:, first:last], rate_hz


def frames_of(segment: Segment, num_frames: int, rate_hz: int) -> tuple[int, int]:
    """Return the first sample of a segment, and the one after its last. Raises RowError(ref_too_short)."""
    first = round(segment.start_s * rate_hz)
    last = num_frames if segment.end_s is None else round(segment.end_s * rate_hz)
    if first >= num_frames or last > num_frames + SEGMENT_SLACK_S * rate_hz:
        end = "its end" if segment.end_s is None else f"{segment.end_s:g} s"
        raise RowError(
            "ref_too_short",
            f"ref_audio lasts {num_frames / rate_hz:.2f} s and has no part from {segment.start_s:g} s to {end}.",
        )
    return first, min(last, num_frames)


def _refuse_too_much(num_samples: int, channels: int, rate_hz: int) -> None:
    if num_samples > MAX_SAMPLES:
        raise RowError(
            "ref_too_long",
            f"ref_audio has {num_samples} samples in {channels} channels of {rate_hz} Hz, more than the {MAX_SAMPLES} "
            "allowed: save it as mono of 24 kHz.",
        )


def _refuse_empty(size_bytes: int) -> None:
    if not size_bytes:  # no file to wait for, as /proc has them
        raise RowError("ref_unreadable", "ref_audio is an empty file, not a recording.")


def _check_level(mono: NDArray[np.float32], ref: RefAudio) -> NDArray[np.float32]:
    peak = float(np.abs(mono).max())
    swing = float(np.ptp(mono)) / 2  # a constant offset is no sound
    if swing < SILENT_PEAK:
        raise RowError(
            "ref_silent", f"ref_audio {printable(ref.label)} is silent: its peak is {swing:.1e} of full scale."
        )
    if swing < QUIET_PEAK:
        log.warning("ref_audio %s is quiet: its peak is %.1f dBFS", printable(ref.label), 20 * math.log10(swing))
    if peak > 1:
        log.warning("ref_audio %s peaks at %.2f of full scale and was scaled down to 1", printable(ref.label), peak)
        return mono / np.float32(peak)
    return mono


def _check_length(seconds: float) -> float:
    if seconds < MIN_REFERENCE_S:
        raise RowError("ref_too_short", f"ref_audio lasts {seconds:.2f} s: at least {MIN_REFERENCE_S} s are needed.")
    if seconds > MAX_REFERENCE_S:
        raise RowError(
            "ref_too_long",
            f"ref_audio lasts {seconds:.0f} s, more than the {MAX_REFERENCE_S:.0f} s allowed "
            f"({math.ceil(seconds * 12.5)} codec frames): cut it together with its transcript.",
        )
    return seconds


def _warn_length(seconds: float, ref: RefAudio) -> None:
    if seconds < SHORT_REFERENCE_S or seconds > LONG_REFERENCE_S:
        log.warning("ref_audio %s lasts %.1f s: 3 to 30 s clone best", printable(ref.label), seconds)


def _rate_hz(ref: RefAudio) -> int:
    assert ref.sampling_rate_hz is not None, "samples always come with their rate"
    return ref.sampling_rate_hz


def _version(ref: RefAudio) -> tuple[str, int, int, Segment | None]:
    """Return (path, size in bytes, modification time in ns, the wanted part) of a reference that is a file."""
    assert ref.path is not None
    path, segment = split_segment(ref.path)
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        raise RowError("ref_missing", _not_there(path, ref.label), transient=True) from error
    if not stat.S_ISREG(found.st_mode):
        raise RowError("ref_unreadable", f"ref_audio {printable(path)} is not a file.")
    return path, found.st_size, found.st_mtime_ns, segment


def _not_there(path: str, label: str) -> str:
    if len(path) > _LONG_PATH_CHARS:
        return f"ref_audio {quote(label)} names no file: if it is base64, write it as data:audio/wav;base64,…"
    near = near_file(path)
    hint = f" Near it is {near!r}." if near else ""
    return f"ref_audio {label!r} is not there: looked for {printable(path)}.{hint}"


class _Raw(FileIO):
    """A file that remembers why it could not be read: to libsndfile every error is the end of the file."""

    failure: OSError | None = None

    def readinto(self, buffer: Any) -> int | None:
        try:
            return super().readinto(buffer)
        except OSError as error:
            self.failure = error
            return 0


@contextmanager
def _open(path: str) -> Iterator[BufferedReader[_Raw]]:
    """Open a recording; raises RowError(ref_unreadable), also at the end when it could not be read to there."""
    try:
        # By descriptor: a file object without a name makes libsndfile look at the content, not at the suffix.
        raw = _Raw(os.open(path, os.O_RDONLY))
    except OSError as error:
        message = f"ref_audio {printable(path)} cannot be opened: {error.strerror}."
        raise RowError("ref_unreadable", message, transient=True) from error
    with BufferedReader(raw) as source:
        try:
            yield source
        finally:
            if raw.failure is not None:
                message = f"ref_audio {printable(path)} cannot be read: {raw.failure.strerror}."
                raise RowError("ref_unreadable", message, transient=True) from raw.failure


@lru_cache(maxsize=65536)
def _file_key(path: str, size_bytes: int, mtime_ns: int) -> str:
    with _open(path) as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


@lru_cache(maxsize=65536)
def _probe_file(path: str, size_bytes: int, mtime_ns: int, segment: Segment | None) -> float | None:
    _refuse_empty(size_bytes)
    with _open(path) as source:
        return _probe(source, segment)


def _probe(source: BinaryIO, segment: Segment | None) -> float | None:
    try:
        with soundfile.SoundFile(source) as sound:
            first, last = 0, sound.frames
            _refuse_unsized(sound.frames, source)
            if segment is not None:
                first, last = frames_of(segment, sound.frames, sound.samplerate)
            seconds = _check_length((last - first) / sound.samplerate)
            _refuse_too_much((last - first) * sound.channels, sound.channels, sound.samplerate)
            return seconds
    except (soundfile.SoundFileError, RuntimeError) as error:
        source.seek(0)
        found = sniff(source.read(4096))
        if not found.may_be_audio:
            raise RowError("ref_unreadable", f"ref_audio is {found}, not a recording.") from error
        return None
