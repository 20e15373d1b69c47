"""References encoded once: codes and x-vectors by content key, in a cache of bounded size and, across runs, on disk."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tts_batch.engine.request import Reference
from tts_batch.engine.voice_store import VoiceStore

if TYPE_CHECKING:
    from tts_batch.model.qwen3_tts import Qwen3TTS

MAX_ENTRIES = 1_024
MAX_BYTES = 512 * 2**20


@dataclass(slots=True, eq=False)
class _Entry:
    """What is known of one voice. The audio stays until the codes are made, so that it is never loaded twice."""

    audio: Any = None  # float32 [samples]
    x_vector: Tensor | None = None
    codes: Tensor | None = None
    error: Exception | None = None  # it could not be loaded, and will not be

    @property
    def num_bytes(self) -> int:
        return sum(x.nbytes for x in (self.audio, self.x_vector, self.codes) if x is not None)

    def is_whole(self, with_codes: bool) -> bool:
        return self.x_vector is not None and (self.codes is not None or not with_codes)


class References:
    """The voices of one engine. Used from its compute thread only."""

    def __init__(
        self,
        model: Qwen3TTS,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
        store: VoiceStore | None = None,
    ) -> None:
        self._model = model
        self._store = store
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # least recently used first
        self._num_bytes = 0

    def encode(self, reference: Reference, *, with_codes: bool) -> tuple[Tensor, Tensor | None]:
        """The voice of a reference, as given with it or encoded here once.

        Returns:
            x-vector [H] and codes int64 [frames, 16], both on the model's device; without `with_codes`, no codes.

        Raises whatever `reference.load` raises, again for every request of the same key.
        """
        entry = self._entries.pop(reference.key, None) or _Entry()
        self._num_bytes -= entry.num_bytes
        try:
            self._complete(entry, reference, with_codes)
        finally:
            self._entries[reference.key] = entry
            self._num_bytes += entry.num_bytes
            while len(self._entries) > self._max_entries or self._num_bytes > self._max_bytes:
                self._num_bytes -= self._entries.popitem(last=False)[1].num_bytes
        assert entry.x_vector is not None
        return entry.x_vector, entry.codes if with_codes else None

    def _complete(self, entry: _Entry, reference: Reference, with_codes: bool) -> None:
        device = self._model.device
        if entry.x_vector is None and reference.x_vector is not None:
            entry.x_vector = torch.tensor(reference.x_vector, device=device)
        if entry.codes is None and reference.codes is not None:
            entry.codes = torch.tensor(reference.codes, device=device, dtype=torch.int64)
        if entry.is_whole(with_codes):
            return
        if self._store is not None and (stored := self._store.load(reference.key)) is not None:
            entry.x_vector, entry.codes = stored
            if entry.is_whole(with_codes):
                return
        if entry.error is not None:
            raise entry.error.with_traceback(None)
        if entry.audio is None:
            try:
                entry.audio = reference.load()
            except Exception as error:
                entry.error = error
                raise
        speaker_encoder, speech_tokenizer = self._model.speaker_encoder, self._model.speech_tokenizer
        if entry.x_vector is None:
            assert speaker_encoder is not None, "a reference is encoded for a Base model only"
            entry.x_vector = speaker_encoder.embed(entry.audio)
        if entry.codes is None and with_codes:
            entry.codes = speech_tokenizer.encode(entry.audio)
        if self._store is not None:
            self._store.save(reference.key, entry.x_vector, entry.codes)
        if entry.codes is not None:
            entry.audio = None
