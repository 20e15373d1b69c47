"""What a decoder of codes is to Code2Wav, and the official network as one; fast_decoder.py is the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from tts_batch.engine.request import SAMPLES_PER_FRAME


class Decode(Protocol):
    """Turns padded codes into audio. Causal: padding on the right changes nothing before it."""

    @property
    def conv_context(self) -> int | None:
        """How many frames before the wanted ones its convolutions need, those in front being left out; None: all."""

    def __call__(self, codes: Tensor, first: Tensor, num_frames: int, ends: Tensor) -> Tensor:
        """Decode frames [first, first + num_frames) of each row.

        Args:
            codes: int64 [batch, 16, frames].
            first: int64 [batch], the first frame that comes out; 0 where there is no `conv_context`.
            num_frames: how many come out.
            ends: int64 [batch], how many frames each row has; what lies behind is padding.

        Returns:
            float32 [batch, num_frames * 1920]; what lies behind a row's end is not to be used.
        """


class ExactDecoder:
    """The official decoder: a network that decodes all of codes int64 [batch, 16, frames], from the first frame on."""

    conv_context = None

    def __init__(self, network: Callable[[Tensor], Tensor]) -> None:
        self._network = network

    def __call__(self, codes: Tensor, first: Tensor, num_frames: int, ends: Tensor) -> Tensor:
        """See `Decode`. Padding is decoded along."""
        return self._network(codes).float()[:, : num_frames * SAMPLES_PER_FRAME]
