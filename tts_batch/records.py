"""What the package's parts pass to one another: a table's row, the recording it names, a failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tts_batch.choices import Task
from tts_batch.errors import Reason


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a row has no clip: one of `errors.REASONS`, and a sentence for its reader."""

    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, eq=False)
class RefAudio:
    """A row's reference recording as the table gave it, not yet decoded. Exactly one of the first three is set."""

    path: str | None = None  # absolute local path
    data: bytes | None = None  # an encoded audio file
    array: Any = None  # numpy samples: [samples], [channels, samples] or [samples, channels]
    sampling_rate_hz: int | None = None  # of `array`
    label: str = ""  # what the manifest shows: the path as written, or "sha256:…" for bytes and arrays


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One input row after reading and checking. A row with a `failure` is never sent to an engine."""

    row_index: int  # position in the whole input, from 0, in input order
    id: str  # given, or derived from the content; unique among the rows without a failure
    source: str  # "file.parquet:17" (17: the row's number in the file, from 1): where a person finds it
    text: str = ""
    task: Task | None = None  # None only beside a failure that left it unknown
    language: str | None = None  # official lower-case name ("english"); None: auto
    speaker: str | None = None  # lower case
    instruct: str | None = None
    ref_audio: RefAudio | None = None
    ref_text: str | None = None
    x_vector_only: bool = False
    non_streaming: bool | None = None  # prompt layout; None: the task's official default
    seed: int | None = None  # explicit; None: derived from the run's seed and the id
    max_frames: int | None = None  # explicit codec budget; None: from the text
    extras: Mapping[str, Any] = field(default_factory=dict)  # the input's other columns, carried through
    failure: Failure | None = None
