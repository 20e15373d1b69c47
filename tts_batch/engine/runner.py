"""What passes between the engine and a runner: prepared rows in, decoded rows out, one step at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from tts_batch.engine.request import SpeechRequest

if TYPE_CHECKING:
    from tts_batch.model.prompt import Prompt


@dataclass(frozen=True, slots=True, eq=False)
class PreparedRow:
    """A request with everything that decoding needs; tensors on the device."""

    request: SpeechRequest
    prompt: Prompt
    ref_codes: Tensor | None  # int16 [ref_frames, 16], for in-context cloning
    x_vector: Tensor | None  # [H], for task "base"
    expected_frames: int  # a guess, to put rows of like length together
    ready_at_s: float  # time.monotonic() when prepared
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class DecodedRow:
    """A row that has all its codes."""

    prepared: PreparedRow
    codes: Tensor  # integers [num_frames, 16], its own memory, on any device
    finish_reason: str  # "stop" | "length" | "loop" | "error": its numbers are no longer finite
    eos: bool
    metrics: Mapping[str, float]


class Runner(Protocol):
    """Turns prompts into codes. Used from one thread; a row leaves it once: decoded, cancelled or evicted."""

    max_num_seqs: int  # rows decoded together; RowLimit lowers it when memory runs out, and raises it again

    @property
    def room(self) -> int:
        """How many rows may be added now."""

    @property
    def is_hungry(self) -> bool:
        """Whether a row that is added now could begin at once, rather than wait for another to end."""

    @property
    def busy(self) -> bool:
        """Whether `step` has anything to do."""

    def add(self, row: PreparedRow) -> None:
        """Take a row in, or raise a PromptError if it can never fit. Evicted rows may be added again without room."""

    def start_waiting(self) -> None:
        """Begin with the waiting rows that there is room for, if that can go on beside the host: step() does it too."""

    def step(self) -> list[DecodedRow]:
        """Go on by a frame or a few; return the rows that ended. After an exception, `evict` and add again."""

    def progress(self) -> list[tuple[PreparedRow, int]]:
        """Every row in here, and how many frames it is known to have; -1: it still waits."""

    def codes_so_far(self, row: PreparedRow, num_frames: int) -> Tensor:
        """The first frames of a row that is decoding, as many as `progress` says at most: [num_frames, 16], a copy."""

    def cancel(self, request_id: str) -> bool:
        """Drop a row in whatever state it is; False if it is not here."""

    def evict(self) -> list[PreparedRow]:
        """Give back every row that has not ended, those in the midst of decoding first. Added again, a row starts
        again from its first frame, and repeats itself."""
