"""References encoded together: many clips in few passes of few shapes, each with what it would get alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tts_batch.engine.memory_errors import is_out_of_memory
from tts_batch.engine.request import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME

if TYPE_CHECKING:
    from tts_batch.model.qwen3_tts import Qwen3TTS

logger = logging.getLogger(__name__)

Clip = NDArray[np.float32]  # [samples], mono, 24 kHz
Voice = tuple[Tensor, Tensor | None]  # x-vector [H], codes int64 [frames, 16]


@dataclass(frozen=True, slots=True)
class Shapes:
    """The shapes that passes have. A new shape costs cuDNN some 130 ms of planning, so there are few."""

    rows: tuple[int, ...]  # ascending from 1
    step: int  # a pass's samples are a multiple of it
    max_samples: int  # in one pass, all rows together; a longer clip goes alone


ALONE = Shapes(rows=(1,), step=1, max_samples=0)
TOGETHER = Shapes(rows=(1, 4, 16), step=2 * SAMPLE_RATE_HZ, max_samples=96 * SAMPLE_RATE_HZ)  # some 2.5 GB in float32


class ReferenceEncoder:
    """The two encoders of a Base model, behind one call. On CUDA nothing in here waits for the device."""

    def __init__(self, model: Qwen3TTS, shapes: Shapes | None = None) -> None:
        """By default clips share passes on CUDA only; a CPU gains nothing by it and would pay for the padding."""
        self._model = model
        self._is_cuda = model.device.type == "cuda"
        self._shapes = shapes or (TOGETHER if self._is_cuda else ALONE)

    @property
    def _most_rows(self) -> int:
        """Of the largest passes that clips share."""
        return max((n for n in self._shapes.rows if n * self._shapes.step <= self._shapes.max_samples), default=1)

    def num_spare(self, num_clips: int) -> int:
        """How many clips more the largest passes have room for, beside these."""
        return -num_clips % self._most_rows

    def warm_up(self) -> None:
        """Run the largest pass that clips share; does nothing where each goes alone."""
        if (rows := self._most_rows) > 1:
            silence = np.zeros(self._shapes.max_samples // rows, dtype=np.float32)
            self.encode([silence] * rows, [True] * rows)

    def limit(self, seconds: float) -> None:
        """Encode at most `seconds` of audio together, where that is less than before; a longer clip goes alone."""
        most = min(self._shapes.max_samples, int(seconds * SAMPLE_RATE_HZ))
        self._shapes = replace(self._shapes, max_samples=most)

    @torch.no_grad()
    def encode(self, clips: Sequence[Clip], with_codes: Sequence[bool]) -> list[Voice | Exception]:
        """The voice of each clip of at least 0.1 s, with codes for those that want them, on the model's device.

        Equal to `SpeakerEncoder.embed` and `SpeechTokenizer.encode` of each clip, up to rounding and what near ties
        make of it. A clip for which memory does not suffice even alone gets the error instead.
        """
        voices: dict[int, Voice | Exception] = {}
        for wanted in (True, False):
            indices = [index for index, codes in enumerate(with_codes) if codes is wanted]
            indices.sort(key=lambda index: -len(clips[index]))
            for rows, group in self._groups(indices, clips):
                encoded = self._encode(rows, [clips[index] for index in group], wanted)
                voices.update(zip(group, encoded, strict=True))
        return [voices[index] for index in range(len(clips))]

    def _groups(self, indices: list[int], clips: Sequence[Clip]) -> Iterator[tuple[int, list[int]]]:
        """Passes over clips given longest first: the rows of each, at least half of them used, and its clips."""
        while indices:
            samples = self._padded(len(clips[indices[0]]))
            fitting = (
                n for n in self._shapes.rows if n <= 2 * len(indices) and n * samples <= self._shapes.max_samples
            )
            rows = max(fitting, default=1)
            yield rows, indices[:rows]
            indices = indices[rows:]

    def _encode(self, rows: int, clips: Sequence[Clip], with_codes: bool) -> list[Voice | Exception]:
        """One pass, or several of fewer rows when memory runs out."""
        try:
            return list(self._run_pass(rows, clips, with_codes))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            failed = error.with_traceback(None)  # which keeps the tensors of the pass
        torch.cuda.empty_cache()
        if rows == 1:
            return [failed]
        fewer = max(n for n in self._shapes.rows if n < rows)
        tried = rows * self._padded(len(clips[0]))
        if tried <= self._shapes.max_samples:  # remembered: no later pass is as large
            self._shapes = replace(self._shapes, max_samples=tried - 1)
            logger.warning("out of memory encoding %.0f s of references together", tried / SAMPLE_RATE_HZ)
        parts = [clips[start : start + fewer] for start in range(0, len(clips), fewer)]
        return [voice for part in parts for voice in self._encode(fewer, part, with_codes)]

    def _run_pass(self, rows: int, clips: Sequence[Clip], with_codes: bool) -> Iterator[Voice]:
        """Rows without a clip hear silence."""
        speaker_encoder, speech_tokenizer = self._model.speaker_encoder, self._model.speech_tokenizer
        assert speaker_encoder is not None, "a reference is encoded for a Base model only"
        samples = self._padded(len(clips[0]))
        audio = torch.zeros(rows, samples, pin_memory=self._is_cuda)
        lengths = torch.full((rows,), samples, pin_memory=self._is_cuda)
        for row, clip in enumerate(clips):
            audio.numpy()[row, : len(clip)] = clip
            lengths[row] = len(clip)
        audio, lengths = (x.to(self._model.device, non_blocking=True) for x in (audio, lengths))
        x_vectors = speaker_encoder.embed_batch(audio, lengths)
        codes = speech_tokenizer.encode_batch(audio, lengths) if with_codes else None
        for row, clip in enumerate(clips):
            num_frames = -(-len(clip) // SAMPLES_PER_FRAME)
            yield x_vectors[row], None if codes is None else codes[row, :num_frames]

    def _padded(self, samples: int) -> int:
        return -(-samples // self._shapes.step) * self._shapes.step
