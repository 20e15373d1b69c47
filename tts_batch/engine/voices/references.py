"""References encoded once: codes and x-vectors by content key, in a cache of bounded size and, across runs, on disk."""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tts_batch.engine.request import Reference
from tts_batch.engine.voices.encoder import ALONE, ReferenceEncoder
from tts_batch.engine.voices.load_ahead import LoadAhead
from tts_batch.engine.voices.store import VoiceStore

if TYPE_CHECKING:
    from tts_batch.model.qwen3_tts import Qwen3TTS

logger = logging.getLogger(__name__)

MAX_ENTRIES = 1_024
MAX_BYTES = 512 * 2**20
FIRST_WAIT_S = 1.0
"""After the second failure to load a clip for a reason that may pass; twice as long after each further one."""


@dataclass(slots=True, eq=False)
class _Entry:
    """The cached parts of a voice. Audio is kept until the codes are made, so that it is loaded once."""

    audio: Any = None  # float32 [samples]
    x_vector: Tensor | None = None
    codes: Tensor | None = None  # int16 [frames, 16]
    error: Exception | None = None  # why it could not be loaded the last time
    num_errors: int = 0
    load_again_at_s: float = 0.0

    @property
    def num_bytes(self) -> int:
        return sum(x.nbytes for x in (self.audio, self.x_vector, self.codes) if x is not None)

    def is_whole(self, with_codes: bool) -> bool:
        return self.x_vector is not None and (self.codes is not None or not with_codes)

    @property
    def may_load(self) -> bool:
        return self.audio is None and (self.error is None or time.monotonic() >= self.load_again_at_s)

    def note_error(self, error: Exception) -> None:
        """Remember why it could not be loaded, so that not every request of the voice tries that again."""
        self.error = error
        self.num_errors += 1
        is_transient = getattr(error, "transient", isinstance(error, OSError))
        wait_s = FIRST_WAIT_S * 2.0 ** (self.num_errors - 2) if self.num_errors > 1 else 0.0
        self.load_again_at_s = time.monotonic() + wait_s if is_transient else math.inf

    def fill(self, x_vector: Tensor | None, codes: Tensor | None) -> None:
        """Set the missing parts."""
        self.x_vector = x_vector if self.x_vector is None else self.x_vector
        self.codes = codes.to(torch.int16) if self.codes is None and codes is not None else self.codes


class References:
    """The voices of one engine. Used from its compute thread only.

    `encode` does all that one voice needs. Where several are wanted, call `load_ahead`, `load` for each, and
    `encode_loaded` before: together they take a small part of the time that they take one by one.
    """

    def __init__(
        self,
        model: Qwen3TTS,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
        store: VoiceStore | None = None,
        together: bool = True,
    ) -> None:
        """Without `together`, each voice is encoded in a pass of its own, on CUDA too."""
        self._device = model.device
        self._encoder = ReferenceEncoder(model, None if together else ALONE)
        self._store = store
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # least recently used first
        self._num_bytes = 0
        self._ahead = LoadAhead()
        self._upcoming: dict[str, tuple[Reference, bool]] = {}  # those loaded ahead, and whether with codes
        self._loaded: dict[str, tuple[_Entry, bool]] = {}  # for `encode_loaded`, and whether with codes

    def warm_up(self) -> None:
        """Encode silence, on CUDA: its libraries take seconds for their first pass."""
        self._encoder.warm_up()

    def load_ahead(self, references: Iterable[tuple[Reference, bool]]) -> None:
        """Load the clips that `load` will ask for, several at once; other clips that wait are dropped.

        Args:
            references: the next ones, in order, and whether each is wanted with codes.
        """
        self._upcoming = {
            reference.key: (reference, with_codes)
            for reference, with_codes in references
            if reference.key not in self._entries
            and (reference.x_vector is None or reference.codes is None)
            and not (self._store is not None and self._store.holds(reference.key))
        }
        self._ahead.start(reference for reference, _ in self._upcoming.values())

    def load(self, reference: Reference, *, with_codes: bool) -> None:
        """Load the clip for `encode_loaded`, unless the voice is known. What goes wrong, `encode` raises."""
        try:
            entry = self._load(reference, with_codes)
        except Exception:  # codes of no shape, no memory: met again where it is this one request's failure
            return
        if entry.error is None and not entry.is_whole(with_codes):
            _, codes_too = self._loaded.get(reference.key, (entry, False))
            self._loaded[reference.key] = entry, with_codes or codes_too

    def encode_loaded(self) -> None:
        """Encode what was loaded, together. What this fails for, `encode` tries again alone.

        A pass takes as long for one clip as for many: clips of upcoming requests that are loaded fill the last one.
        """
        for reference, with_codes in self._upcoming.values():
            if self._encoder.num_spare(len(self._loaded)) == 0:
                break
            if reference.key not in self._loaded and self._ahead.has(reference.key):
                self.load(reference, with_codes=with_codes)
        loaded, self._loaded = self._loaded, {}
        try:
            self._encode(loaded)
        except Exception as error:
            logger.warning("some of %d references could not be encoded together: %s", len(loaded), error)

    def encode(self, reference: Reference, *, with_codes: bool) -> tuple[Tensor, Tensor | None]:
        """The voice of a reference, as given with it or encoded here once.

        Returns:
            x-vector [H] and codes int16 [frames, 16], both on the model's device; without `with_codes`, no codes.

        Raises what `reference.load` raises, again for every request of the same key. It is called again after an
        OSError, or an error with a true `transient`: once at once, then ever more rarely.
        """
        entry = self._load(reference, with_codes)
        if not entry.is_whole(with_codes):
            if entry.error is not None:
                raise entry.error.with_traceback(None)
            self._encode({reference.key: (entry, with_codes)})
        assert entry.x_vector is not None
        return entry.x_vector, entry.codes if with_codes else None

    def _load(self, reference: Reference, with_codes: bool) -> _Entry:
        """The entry of a reference: whole, or with its audio, or with an error."""
        entry = self._take_out(reference.key) or _Entry()
        if entry.x_vector is None and reference.x_vector is not None:
            entry.x_vector = torch.tensor(reference.x_vector, device=self._device)
        if entry.codes is None and reference.codes is not None:
            entry.codes = torch.tensor(reference.codes, device=self._device, dtype=torch.int16)
        may_load = entry.may_load
        if may_load and not entry.is_whole(with_codes) and self._store is not None:
            entry.fill(*self._store.load(reference.key) or (None, None))
        if may_load and not entry.is_whole(with_codes):
            try:
                entry.audio, entry.error = self._ahead.take(reference), None
            except Exception as error:
                entry.note_error(error)
        self._put_in(reference.key, entry)
        return entry

    def limit(self, seconds: float) -> None:
        """Encode at most `seconds` of references together."""
        self._encoder.limit(seconds)

    def _encode(self, loaded: dict[str, tuple[_Entry, bool]]) -> None:
        """Make entries whole that have their audio. Raises the out of memory error of one after making all that fit."""
        clips = [entry.audio for entry, _ in loaded.values()]
        voices = self._encoder.encode(clips, [wanted and entry.codes is None for entry, wanted in loaded.values()])
        too_big = None
        for (key, (entry, _)), voice in zip(loaded.items(), voices, strict=True):
            if isinstance(voice, Exception):
                too_big = voice
                continue
            self._take_out(key)
            entry.fill(*voice)
            if entry.codes is not None:
                entry.audio = None
            self._put_in(key, entry)
            if self._store is not None:
                self._store.save(key, entry.x_vector, entry.codes)
        if too_big is not None:
            raise too_big

    # An entry changes its size only while it is outside the cache.

    def _take_out(self, key: str) -> _Entry | None:
        entry = self._entries.pop(key, None)
        self._num_bytes -= entry.num_bytes if entry else 0
        return entry

    def _put_in(self, key: str, entry: _Entry) -> None:
        self._entries[key] = entry
        self._num_bytes += entry.num_bytes
        while len(self._entries) > self._max_entries or self._num_bytes > self._max_bytes:
            self._num_bytes -= self._entries.popitem(last=False)[1].num_bytes
