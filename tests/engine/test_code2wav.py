"""Code2Wav: the official seams, exact trims, audio of the receiver's own, halves when memory is short."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tts_batch.engine.code2wav import Code2Wav
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.speech_tokenizer import SpeechTokenizer


@pytest.fixture(scope="module")
def speech_tokenizer(tiny_model: Callable[[str], Qwen3TTS]) -> SpeechTokenizer:
    return tiny_model("custom_voice").speech_tokenizer


def random_codes(frames: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 2_048, (frames, 16), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("ref_frames", "frames"),
    [(0, 0), (0, 1), (1, 1), (71, 3), (72, 3), (73, 3), (299, 2), (300, 2), (301, 2), (330, 1), (0, 301), (10, 300)],
)
def test_trims_exactly_and_cuts_at_the_official_seams(
    speech_tokenizer: SpeechTokenizer, ref_frames: int, frames: int
) -> None:
    reference, codes = random_codes(ref_frames, 1), random_codes(frames, 2)
    (audio,) = Code2Wav(speech_tokenizer, 325).decode([(codes, reference if ref_frames else None)])
    whole = speech_tokenizer.decode(torch.cat([reference, codes])).numpy()
    assert audio.dtype == np.float32
    assert audio.shape == (frames * 1_920,)
    np.testing.assert_allclose(audio, whole[ref_frames * 1_920 :], atol=2e-5)


def test_rows_of_any_lengths_together_equal_each_alone(speech_tokenizer: SpeechTokenizer) -> None:
    rows = [(random_codes(n, n), random_codes(r, 9) if r else None) for n, r in [(5, 0), (1, 20), (302, 3)]]
    together = Code2Wav(speech_tokenizer, 2_000).decode(rows)
    for row, audio in zip(rows, together, strict=True):
        (alone,) = Code2Wav(speech_tokenizer, 1).decode([row])
        np.testing.assert_allclose(audio, alone, atol=2e-5)


def test_audio_is_owned_by_the_receiver(speech_tokenizer: SpeechTokenizer) -> None:
    code2wav = Code2Wav(speech_tokenizer, 100)
    first, second = code2wav.decode([(random_codes(3), None), (random_codes(3), None)])
    assert first.flags.owndata
    assert second.flags.owndata
    kept = second.copy()
    first[:] = 9
    assert np.array_equal(second, kept)


class SmallMemory:
    """A speech tokenizer whose device holds only so many frames at once."""

    def __init__(self, speech_tokenizer: SpeechTokenizer, max_frames: int) -> None:
        self.speech_tokenizer, self.max_frames = speech_tokenizer, max_frames

    def decode_pieces(self, pieces: list) -> list[torch.Tensor]:
        if len(pieces) * max(piece.stop - piece.start + piece.context for _, piece in pieces) > self.max_frames:
            raise torch.OutOfMemoryError("scripted")
        return self.speech_tokenizer.decode_pieces(pieces)


def test_out_of_memory_halves_and_fails_only_what_never_fits(speech_tokenizer: SpeechTokenizer) -> None:
    rows = [(random_codes(n, n), None) for n in (40, 6, 6, 6, 6)]
    expected = Code2Wav(speech_tokenizer, 1).decode(rows)
    audio = Code2Wav(SmallMemory(speech_tokenizer, 13), 10_000).decode(rows)
    assert audio[0] is None
    for got, want in zip(audio[1:], expected[1:], strict=True):
        np.testing.assert_allclose(got, want, atol=2e-5)
