"""The finished clips of a run in input order, found by its manifest: the source of every format."""

from __future__ import annotations

import io
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b, file_digest
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow.parquet as pq
import soundfile
from numpy.typing import NDArray
from tqdm import tqdm

from tts_batch.errors import CannotContinueError
from tts_batch.export.columns import exported_schema
from tts_batch.store.clips import SUFFIXES, clip_path
from tts_batch.store.index import JournalIndex
from tts_batch.store.run_json import read_ended_run
from tts_batch.store.schema import MANIFEST
from tts_batch.store.storage import Sizes, Storage, storage_of

_BATCH_ROWS = 2_000
_SCANNED = [
    "id", "status", "reason", "audio", "duration_s", "sample_rate", "effective_language", "language", "model",
    "fingerprint",
]  # fmt: skip
_AT_ONCE = 16  # clips; they may be in memory
_THREADS = 8

Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class FinishedClip:
    """A clip that is exported."""

    position: int  # among these, from 0
    row: Mapping[str, Any]  # its columns, as `exported_schema` has them
    path: Path
    num_bytes: int
    storage: Storage  # that it is in

    @property
    def suffix(self) -> str:
        """With its dot, as in ".wav"."""
        return self.path.suffix

    def read(self) -> bytes:
        """Return the bytes of the file. Raises CannotContinueError when it has changed since the export began."""
        try:
            data = self.storage.read(f"{self.path.parent.name}/{self.path.name}")
        except FileNotFoundError:
            data = b""
        if len(data) != self.num_bytes:
            raise changed_error(self.path)
        return data

    def decode(self, dtype: Literal["int16", "float32"]) -> tuple[NDArray[Any], int]:
        """Return samples [samples] and their rate in Hz. Raises CannotContinueError when the file is damaged."""
        data = self.read()
        try:
            samples, rate_hz = soundfile.read(io.BytesIO(data), dtype=dtype)
        except soundfile.LibsndfileError:
            message = f"{self.path} is damaged: delete it, and the run's `synth` command makes it again."
            raise CannotContinueError(message) from None
        return samples, rate_hz


def changed_error(clip: Path) -> CannotContinueError:
    """Return the error for a clip that has changed since the export began."""
    return CannotContinueError(f"{clip} was changed during the export. Run the same command again.")


class FinishedClips:
    """The clips of a run folder that are ok in its manifest and have the sizes that its journal gives.

    Opening reads the manifest once, and each iteration once more; 9 bytes a row are kept. Every other row is counted
    in `left_out`: by the reason why it failed, or as "pending", "missing" (no file) or "changed" (another file, or
    made anew since the manifest was written).
    """

    def __init__(self, run: Path) -> None:
        """Check every clip of the run folder `run`. Raises UsageError when a run works in it or has not ended."""
        self._state = str(read_ended_run(run)["state"])
        self.run = run
        self._manifest = run / MANIFEST
        self.schema = exported_schema(pq.read_schema(self._manifest))
        self.left_out: Counter[str] = Counter()
        self.suffixes: Counter[str] = Counter()
        self.sample_rates: set[int] = set()
        self.languages: set[str] = set()
        self.models: set[str] = set()
        self.audio_s = 0.0
        self.remarks: list[str] = []
        self._chosen = bytearray()  # 1 for each row that is exported
        self.sizes = self._scan()  # bytes of each exported clip

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def num_rows(self) -> int:
        """Of the manifest."""
        return len(self._chosen)

    @property
    def digest(self) -> str:
        """A hash of everything that an export is made of: equal digests give equal exports."""
        with self._manifest.open("rb") as file:
            content = file_digest(file, blake2b)
        content.update(self._chosen)
        content.update(self.sizes)
        return content.hexdigest()[:32]

    def __iter__(self) -> Iterator[FinishedClip]:
        """Yield the clips in input order, with a bar where stderr is a terminal."""
        return iter(tqdm(self._read(), total=len(self), unit="clip", disable=None, dynamic_ncols=True))

    def _read(self) -> Iterator[FinishedClip]:
        number = position = 0
        storage = storage_of(self.run)
        for batch in pq.ParquetFile(self._manifest).iter_batches(_BATCH_ROWS, columns=["audio", *self.schema.names]):
            for row in batch.to_pylist():
                if self._chosen[number]:
                    path = self.run / row.pop("audio")
                    yield FinishedClip(position, row, path, self.sizes[position], storage)
                    position += 1
                number += 1

    def _scan(self) -> array[int]:
        index = JournalIndex(self.run)
        size_of = storage_of(self.run).sizes(len(index))
        sizes = array("Q")
        for batch in pq.ParquetFile(self._manifest).iter_batches(_BATCH_ROWS, columns=_SCANNED):
            for row in batch.to_pylist():
                size = self._size_to_export(row, index, size_of)
                self._chosen.append(size is not None)
                if size is not None:
                    sizes.append(size)
                    self._count(row)
        made_since = index.ok - len(sizes) - self.left_out["missing"]
        if self._state != "finished" and made_since > 0:
            self.remarks.append(
                f"{made_since} clips are newer than the manifest: `tts-batch finish {self.run}` adds them to it."
            )
        return sizes

    def _size_to_export(self, row: Mapping[str, Any], index: JournalIndex, size_of: Sizes) -> int | None:
        if row["status"] != "ok":
            self.left_out[row["reason"] or row["status"]] += 1
            return None
        path = Path(row["audio"] or "")
        if path.suffix not in SUFFIXES or str(path) != clip_path(row["id"], path.suffix):
            self.left_out["changed"] += 1  # a manifest of others could name any file
            return None
        if (size := size_of(str(path))) is None:
            self.left_out["missing"] += 1
            return None
        found = self.run / path
        # A folder without its journal cannot be compared with it.
        if found.is_symlink() or found.is_dir() or (len(index) and size != index.clip_bytes(row)):
            self.left_out["changed"] += 1
            return None
        return size

    def _count(self, row: Mapping[str, Any]) -> None:
        self.audio_s += row["duration_s"]
        self.suffixes[Path(row["audio"]).suffix] += 1
        self.sample_rates.add(row["sample_rate"])
        self.models.add(row["model"])
        if language := row["effective_language"] or row["language"]:
            self.languages.add(language)


def map_ahead(
    work: Callable[[FinishedClip], Done], clips: Iterable[FinishedClip]
) -> Iterator[tuple[FinishedClip, Done]]:
    """Yield each clip, in order, with `work(clip)`, which threads compute for a few clips at a time."""
    clips = iter(clips)
    with ThreadPoolExecutor(_THREADS) as threads:
        while batch := list(islice(clips, _AT_ONCE)):
            yield from zip(batch, threads.map(work, batch), strict=True)
