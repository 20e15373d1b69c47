"""From a request to a prepared row: the reference encoded, the prompt built, or a reason why not."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tts_batch.engine.request import SpeechRequest
from tts_batch.engine.runner import EngineRow
from tts_batch.engine.voices.references import References
from tts_batch.engine.voices.store import VoiceStore
from tts_batch.model.prompt import PromptError, build_prompt

if TYPE_CHECKING:
    from tts_batch.model.qwen3_tts import Qwen3TTS

FRAMES_PER_TEXT_TOKEN = 4  # a rough average; it decides only the order of rows


class Preparer:
    """Prepares requests on the engine's compute thread.

    `prepare` does all that one request needs. Before a burst of them, `load_ahead`, `load` each, `encode_loaded`.
    """

    def __init__(self, model: Qwen3TTS, store: VoiceStore | None = None, references_together: bool = True) -> None:
        """With a store, voices that an earlier run encoded are not encoded again."""
        self._model = model
        self._store = store
        self._references_together = references_together
        self._reference_s: float | None = None
        self.forget_references()

    def forget_references(self) -> None:
        """Encode every voice anew, unless it is stored."""
        self._references = References(self._model, store=self._store, together=self._references_together)
        if self._reference_s is not None:
            self._references.limit(self._reference_s)

    def limit_references(self, seconds: float) -> None:
        """Encode at most `seconds` of references together, from now on."""
        self._reference_s = seconds
        self._references.limit(seconds)

    def close(self) -> None:
        """Finish writing to the store."""
        if self._store is not None:
            self._store.flush()

    def warm_up(self) -> None:
        """Make the first references as fast to encode as later ones."""
        if self._model.config.kind == "base":
            self._references.warm_up()

    def load_ahead(self, requests: Iterable[SpeechRequest]) -> None:
        """Load the references of the next requests, several at once."""
        self._references.load_ahead(
            (r.reference, not r.x_vector_only) for r in requests if r.reference is not None and self._clones(r)
        )

    def load(self, request: SpeechRequest) -> None:
        """Load the request's reference, unless its voice is known. What goes wrong, `prepare` raises."""
        if request.reference is not None and self._clones(request):
            self._references.load(request.reference, with_codes=not request.x_vector_only)

    def encode_loaded(self) -> None:
        """Encode the references that were loaded, together."""
        self._references.encode_loaded()

    def prepare(self, request: SpeechRequest) -> EngineRow:
        """Raises an exception that `results.failure_result` turns into the row's reason."""
        started_s = time.monotonic()
        _check(request)
        x_vector = ref_codes = None
        if request.reference is not None and self._clones(request):
            x_vector, ref_codes = self._references.encode(request.reference, with_codes=not request.x_vector_only)
        prompt = build_prompt(
            self._model.config,
            self._model.text_tokenizer,
            text=request.text,
            task=request.task,
            language=request.language,
            speaker=request.speaker,
            instruct=request.instruct,
            ref_text=request.reference.text if request.reference else None,
            num_ref_frames=None if ref_codes is None else len(ref_codes),
            has_x_vector=x_vector is not None,
            x_vector_only=request.x_vector_only,
            non_streaming=request.non_streaming,
        )
        positions = self._model.config.talker.max_position_embeddings
        if prompt.num_tokens + request.max_frames > positions:
            raise PromptError(
                "text_too_long",
                f"the prompt takes {prompt.num_tokens} positions and the budget {request.max_frames}; "
                f"the model has {positions}: shorten the text or lower its budget (--max-frames).",
            )
        now_s = time.monotonic()
        return EngineRow(
            request=request,
            prompt=prompt,
            ref_codes=ref_codes,
            x_vector=x_vector,
            expected_frames=min(request.max_frames, FRAMES_PER_TEXT_TOKEN * prompt.num_text_tokens),
            ready_at_s=now_s,
            metrics={
                "prepare_s": now_s - started_s,
                "prompt_tokens": prompt.num_tokens,
                "text_tokens": prompt.num_text_tokens,
            },
        )

    def _clones(self, request: SpeechRequest) -> bool:
        return request.task == "base" and self._model.config.kind == "base"


def _check(request: SpeechRequest) -> None:
    """Raise a PromptError for numbers that no device tensor holds, or no draw can be made with."""
    if not 0 <= request.seed < 2**63:
        raise PromptError("bad_seed", f"seed {request.seed} is not in 0 .. 2**63 - 1.")
    p = request.sampling
    for name, value in (
        ("temperature", p.temperature),
        ("subtalker_temperature", p.subtalker_temperature),
        ("repetition_penalty", p.repetition_penalty),
    ):
        if not 0 < value < math.inf:
            raise PromptError("bad_row", f"{name} cannot be {value}: it is a number above 0.")
    for name, count in (
        ("top_k", p.top_k),
        ("subtalker_top_k", p.subtalker_top_k),
        ("min_new_tokens", p.min_new_tokens),
        ("max_frames", request.max_frames),
    ):
        if not 0 <= count < 2**31:
            raise PromptError("bad_row", f"{name} cannot be {count}: it is in 0 .. 2**31 - 1.")
