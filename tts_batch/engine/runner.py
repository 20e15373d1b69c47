"""What passes between the engine's stages: rows, which a runner decodes one step at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from tts_batch.engine.request import SpeechRequest

if TYPE_CHECKING:
    from tts_batch.model.prompt import Prompt


@dataclass(slots=True, eq=False)
class EngineRow:
    """A request on its way through the engine: prepared, then decoded. A stage that has it owns it."""

    request: SpeechRequest
    prompt: Prompt
    ref_codes: Tensor | None  # int16 [ref_frames, 16] on the device, for in-context cloning
    x_vector: Tensor | None  # [H] on the device, for task "base"
    expected_frames: int  # a guess, to put rows of like length together
    ready_at_s: float  # time.monotonic() when prepared
    metrics: dict[str, float]

    # Runner v2's, while the row decodes
    slot: int = -1
    pages: tuple[int, ...] = ()
    admitted_at_s: float = 0.0

    # What `end` sets
    codes: Tensor | None = None  # integers [num_frames, 16], its own memory, on any device
    finish_reason: str | None = None  # "stop" | "length" | "loop" | "error": its numbers are no longer finite
    eos: bool = False

    @property
    def request_id(self) -> str:
        return self.request.request_id

    def end(self, codes: Tensor, finish_reason: str, metrics: dict[str, float]) -> EngineRow:
        """Note how decoding ended, and return the row."""
        self.codes = codes
        self.finish_reason = finish_reason
        self.eos = finish_reason == "stop"
        self.metrics |= metrics
        return self


class Runner(Protocol):
    """Turns prompts into codes. Used from one thread; a row leaves it once: decoded, cancelled or evicted."""

    max_num_seqs: int  # rows decoded together; RowLimit lowers it when memory runs out, and raises it again

    @property
    def room(self) -> int:
        """How many rows may be added now."""

    @property
    def has_free_slots(self) -> bool:
        """Whether a row that is added now could begin at once, rather than wait for another to end."""

    @property
    def busy(self) -> bool:
        """Whether `step` has rows to decode."""

    def add(self, row: EngineRow) -> None:
        """Take a row in, or raise a PromptError if it can never fit. Evicted rows may be added again without room."""

    def start_waiting(self) -> None:
        """Start waiting rows in free slots, if that is asynchronous; step() does it too."""

    def step(self) -> list[EngineRow]:
        """Advance by one or a few frames; return the rows that ended. After an exception, `evict` and add again."""

    def progress(self) -> list[tuple[EngineRow, int]]:
        """Every row in here, and how many frames it is known to have; -1: it still waits."""

    def codes_so_far(self, row: EngineRow, num_frames: int) -> Tensor:
        """The first frames of a row that is decoding, as many as `progress` says at most: [num_frames, 16], a copy."""

    def cancel(self, request_id: str) -> bool:
        """Drop a row in any state; False if it is unknown."""

    def evict(self) -> list[EngineRow]:
        """Return every unfinished row, decoding ones first. Added again, a row starts
        again from its first frame, and repeats itself."""
