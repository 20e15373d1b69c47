"""Reference cells: a path, a URI, bytes or samples in any usual shape, to a RefAudio that is not yet decoded."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np

from tts_batch.dataset.audio import decode_bytes, frames_of
from tts_batch.dataset.cells import kind_of, parse_string, quote
from tts_batch.dataset.segments import Segment, split_segment
from tts_batch.errors import RowError
from tts_batch.records import RefAudio

if TYPE_CHECKING:
    from tts_batch.dataset.fetch import Fetcher

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):", re.IGNORECASE)
_REMOTE = re.compile("(https?|s3a?|gcs|gs|hf)://", re.IGNORECASE)
_NO_RATE = "ref_audio is samples without their rate: give (samples, rate in hertz)."
_MAX_RATE_HZ = 1 << 31
_MAX_PATH_CHARS = 4096  # of Linux: what is longer is no path, but most likely base64


class RefCells:
    """Reads the ref_audio cells of one table.

    Relative paths start at `folder`, the table's own (None for a remote table), and where nothing lies there, at
    `root`. With a `root`, a path that leads outside of it is refused, through links too. URLs need a `fetcher`, and so
    do relative paths in a table of an object store, which start at its `folder_url`.
    """

    def __init__(
        self, folder: Path | None, root: Path | None, fetcher: Fetcher | None = None, folder_url: str | None = None
    ) -> None:
        self._folder, self._folder_url = folder, None if root is not None else folder_url
        self._root = root.resolve() if root is not None else None
        self._fetcher = fetcher
        self._known_path = lru_cache(maxsize=1 << 14)(self._find_path)  # many rows share a voice

    def start(self, cell: Any) -> None:
        """Begin to fetch the URL in a cell that will be parsed later, if it holds one."""
        if isinstance(cell, list | tuple) and len(cell) == 1:
            cell = cell[0]
        if isinstance(cell, Mapping) and _is_nothing(cell.get("bytes")) and cell.get("array") is None:
            cell = cell.get("path")
        if self._fetcher is not None and isinstance(cell, str) and (url := self._url(cell.strip())) is not None:
            self._fetcher.start(split_segment(url)[0])

    def _url(self, text: str) -> str | None:
        """Return the URL that a cell with a text means; None for a local path, or what is no path."""
        if _REMOTE.match(text):
            return text
        if self._folder_url is None or not text or _SCHEME.match(text) or text.startswith(("/", "~")):
            return None
        return None if ".." in text.split("/") else f"{self._folder_url}/{text}"

    def parse(self, cell: Any) -> RefAudio | None:
        """Return the reference, or None for an empty cell. Raises RowError naming what is wrong with the cell."""
        if cell is None:
            return None
        if isinstance(cell, str):
            return self._from_string(cell)
        if isinstance(cell, bytes):
            return _from_bytes(cell)
        if isinstance(cell, Mapping):
            return self._from_struct(cell)
        if isinstance(cell, list | tuple):
            return self._from_list(cell)
        if isinstance(cell, np.ndarray):
            raise RowError("ref_unreadable", _NO_RATE)
        raise RowError("ref_unreadable", f"ref_audio is {kind_of(cell)}: give a path, bytes or an audio struct.")

    def _from_string(self, cell: str) -> RefAudio | None:
        text = (parse_string(cell, "ref_audio", "ref_missing") or "").strip()
        if not text:
            return None
        if self._fetcher is not None and (found := self._url(text)) is not None:
            url, segment = split_segment(found)
            return RefAudio(path=f"{self._fetcher.path(url)}{segment.fragment if segment else ''}", label=text)
        scheme = _SCHEME.match(text)
        if scheme is None:
            return self._from_path(text, label=text)
        match scheme[1].lower():
            case "data":
                return _from_data_uri(text)
            case "file":
                return self._from_path(_path_of_file_uri(text), label=text)
            case name if "://" in text:
                raise RowError("url_refused", _refusal(name, text))
            case _:  # a colon in an ordinary file name
                return self._from_path(text, label=text)

    def _from_path(self, written: str, label: str) -> RefAudio:
        return (self._known_path if len(label) <= _MAX_PATH_CHARS else self._find_path)(written, label)

    def _find_path(self, written: str, label: str) -> RefAudio:
        if "\0" in written:
            raise RowError("ref_missing", "ref_audio holds a NUL character, which no path can.")
        path = self._absolute(os.path.expanduser(written), label)
        path, segment = split_segment(path)
        if segment is not None:
            if segment.end_s is not None and segment.end_s <= segment.start_s:
                raise RowError("bad_row", f"ref_audio {quote(label)} names a part that ends before it begins.")
            path = self._absolute(os.path.expanduser(split_segment(written)[0]), label)
        if self._root is not None:
            path = os.path.realpath(path)  # and this path is the one opened, so that no link leads elsewhere
            if not Path(path).is_relative_to(self._root):
                raise RowError("ref_forbidden", f"ref_audio {quote(label)} lies outside --audio-root {self._root}.")
        path += segment.fragment if segment is not None else ""
        return RefAudio(path=path, label=label if len(label) <= _MAX_PATH_CHARS else _hash(label.encode()))

    def _absolute(self, path: str, label: str) -> str:
        if os.path.isabs(path):
            return path
        starts = [start for start in (self._folder, self._root) if start is not None]
        if not starts:
            raise RowError(
                "ref_missing",
                f"ref_audio {quote(label)} is relative, but the table is remote: give --allow-url, or --audio-root.",
            )
        candidates = [os.path.join(start, path) for start in starts]
        return next(filter(os.path.exists, candidates), candidates[0])

    def _from_struct(self, cell: Mapping[str, Any]) -> RefAudio | None:
        if not _is_nothing(cell.get("bytes")):
            return _from_bytes(cell["bytes"])
        if cell.get("array") is not None:
            return _from_samples(cell["array"], cell.get("sampling_rate"))
        path = cell.get("path")
        if path is not None:
            return self.parse(str(path) if isinstance(path, str | os.PathLike) else path)
        if cell and not {"bytes", "array", "path"} & cell.keys():
            raise RowError("ref_unreadable", f"ref_audio is {quote(dict(cell))}: it needs bytes, path or array.")
        return None

    def _from_list(self, cell: list[Any] | tuple[Any, ...]) -> RefAudio | None:
        if len(cell) > 1 and all(isinstance(item, int | float) for item in cell):
            raise RowError("ref_unreadable", _NO_RATE)
        if len(cell) > 1:
            raise RowError("bad_row", f"ref_audio holds {len(cell)} recordings: a row clones one voice, so give one.")
        return self.parse(cell[0]) if cell else None


def cut(ref: RefAudio, segment: Segment) -> RefAudio:
    """Return the part of a reference. Of a file it is named; samples and bytes are cut.

    Raises RowError(ref_unreadable, ref_too_short).
    """
    if ref.path is not None:
        path, written = split_segment(ref.path)
        if written is not None:
            raise RowError(
                "bad_row", f"ref_audio {quote(ref.label)} names a part, and so do the row's seconds: give one."
            )
        return replace(ref, path=path + segment.fragment, label=ref.label + segment.fragment)
    if ref.data is not None:
        samples, rate_hz = decode_bytes(ref.data, ref.label, segment)
        return _from_samples(samples, rate_hz)
    samples, rate_hz = np.asarray(ref.array), ref.sampling_rate_hz or 0
    first, last = frames_of(segment, max(samples.shape, default=0), rate_hz)
    is_channels_first = samples.ndim == 2 and samples.shape[0] <= samples.shape[1]
    return _from_samples(samples[:, first:last] if is_channels_first else samples[first:last], rate_hz)


def _refusal(scheme: str, url: str) -> str:
    hint = "give --allow-url to fetch it, or " if _REMOTE.match(url) else ""
    return f"ref_audio {quote(url)} is a URL: {hint}download it and name the file."


def _from_bytes(data: Any) -> RefAudio | None:
    if not isinstance(data, bytes):
        raise RowError("ref_unreadable", f"ref_audio's bytes are {kind_of(data)}: give the bytes of a file.")
    return RefAudio(data=data, label=_hash(data)) if data else None


def _hash(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _is_nothing(data: Any) -> bool:
    """Whether a struct leaves its bytes open, so that its path counts: some writers leave them empty, not null."""
    return data is None or (isinstance(data, bytes) and not data)


def _from_samples(array: Any, rate: Any) -> RefAudio:
    if not isinstance(rate, int | float) or not 0 < rate < _MAX_RATE_HZ or rate != int(rate):
        raise RowError("ref_unreadable", f"ref_audio's sampling_rate is {quote(rate)}: samples need theirs in hertz.")
    try:
        samples = np.asarray(array)
    except (ValueError, TypeError, OverflowError) as error:
        raise RowError("ref_unreadable", f"ref_audio's array is not one of numbers: {error}.") from error
    if samples.dtype.kind not in "iuf":
        raise RowError("ref_unreadable", f"ref_audio's array holds {samples.dtype}, not numbers.")
    digest = hashlib.sha256(f"{samples.dtype.str} {samples.shape} {int(rate)} ".encode())
    digest.update(np.ascontiguousarray(samples).data)
    return RefAudio(array=samples, sampling_rate_hz=int(rate), label=f"sha256:{digest.hexdigest()}")


def _from_data_uri(uri: str) -> RefAudio:
    head, comma, body = uri.partition(",")
    if not comma:
        raise RowError("ref_unreadable", "ref_audio is a data: URI without a comma, so without data.")
    try:
        if head.lower().endswith(";base64"):
            data = base64.b64decode("".join(unquote(body).split()), validate=True)
        else:
            data = unquote(body, "latin-1").encode("latin-1")
    except (binascii.Error, UnicodeError) as error:
        raise RowError("ref_unreadable", f"ref_audio is a data: URI that cannot be decoded: {error}.") from error
    ref = _from_bytes(data)
    if ref is None:
        raise RowError("ref_unreadable", "ref_audio is a data: URI with no data.")
    return ref


def _path_of_file_uri(uri: str) -> str:
    rest = uri[len("file:") :]
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in {"", "localhost"}:
            raise RowError("ref_missing", f"ref_audio {quote(uri)} names the host {host}: write file:///path.")
        rest = slash + path
    return unquote(rest)
