"""The fast codec decoder computes what the exact one computes: here its torch twins, in tests/gpu its kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.engine.asking import ask
from tests.engine.random_codec import CONFIG, random_decoder, relative_error
from tests.engine.scripted import prepared_row
from tts_batch.engine.code2wav import fast_decoder as code2wav_fast
from tts_batch.engine.code2wav.decode_pool import DecodePool, PoolLimits
from tts_batch.engine.code2wav.fast_decoder import CONV_CONTEXT, FastCodecDecoder
from tts_batch.engine.code2wav.utterance import UtteranceCode2Wav
from tts_batch.engine.kernels.causal_conv import Ends, causal_conv
from tts_batch.model.speech_tokenizer.decoder import CodecDecoder


@pytest.fixture(scope="module")
def decoder() -> CodecDecoder:
    return random_decoder(CONFIG)


@pytest.fixture
def codes() -> torch.Tensor:
    return torch.randint(0, CONFIG.codebook_size, (3, 16, 9), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_float32_agrees_with_the_exact_decoder(decoder: CodecDecoder, codes: torch.Tensor) -> None:
    expected = decoder(codes)
    audio = FastCodecDecoder(decoder, torch.float32)(codes)
    assert audio.shape == (3, 9 * 1920)
    assert audio.dtype == torch.float32
    assert 0.05 < expected.std() < 0.7, "the comparison needs sound that is neither silent nor clipped"
    assert relative_error(audio, expected) < 1e-5


@torch.no_grad()
def test_bfloat16_is_no_further_from_float32_than_the_exact_decoder_in_bfloat16(
    decoder: CodecDecoder, codes: torch.Tensor
) -> None:
    expected = decoder(codes)
    fast = relative_error(FastCodecDecoder(decoder, torch.bfloat16)(codes), expected)
    rounded = CodecDecoder(CONFIG)
    rounded.load_state_dict(decoder.state_dict())
    assert 1e-4 < fast < 1.1 * relative_error(rounded.bfloat16()(codes), expected)


def test_padding_changes_nothing_before_it(decoder: CodecDecoder, codes: torch.Tensor) -> None:
    fast = FastCodecDecoder(decoder, torch.float32)
    padded = torch.cat([codes, torch.full((3, 16, 4), -1)], dim=2)
    torch.testing.assert_close(fast(padded)[:, : 9 * 1920], fast(codes), rtol=0, atol=1e-5)


def test_rows_do_not_mix(decoder: CodecDecoder, codes: torch.Tensor) -> None:
    fast = FastCodecDecoder(decoder, torch.float32)
    torch.testing.assert_close(fast(codes)[1:2], fast(codes[1:2]), rtol=0, atol=1e-5)


def test_frames_before_the_wanted_ones_are_left_out(decoder: CodecDecoder, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = torch.randint(0, CONFIG.codebook_size, (3, 16, 60), generator=torch.Generator().manual_seed(2))
    fast = FastCodecDecoder(decoder, torch.float32)
    whole = fast(codes)
    first = torch.tensor([0, 17, 40])
    part = fast(codes, first, 30)
    assert part.shape == (3, 30 * 1920)
    for row, start in enumerate(first.tolist()):
        context = CONV_CONTEXT * 1920 if start else 0
        stop = min(30, 60 - start) * 1920
        expected = whole[row, start * 1920 :][context:stop]
        torch.testing.assert_close(part[row, context:stop], expected, rtol=0, atol=1e-5)
    # Neither is waste: without this frame, or with four less before it, a difference would be heard.
    wanted = whole[1, 18 * 1920 : 19 * 1920]
    assert (part[1, :1920] - whole[1, 17 * 1920 : 18 * 1920]).abs().max() > 1e-5
    monkeypatch.setattr(code2wav_fast, "_LOOK_BACK", 7)
    assert (fast(codes, first, 30)[1, 1920 : 2 * 1920] - wanted).abs().max() > 1e-5


@pytest.mark.parametrize("first", [None, torch.tensor([0, 17, 40])])
def test_nothing_looks_behind_the_end_of_a_row(
    decoder: CodecDecoder, first: torch.Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = FastCodecDecoder(decoder, torch.float32)
    codes = torch.randint(0, CONFIG.codebook_size, (3, 16, 60), generator=torch.Generator().manual_seed(2))
    ends = torch.tensor([9, 60, 41])
    seen = []

    def leave_out(x: torch.Tensor, *args: object, ends: Ends | None = None, **options: object) -> tuple:
        results = causal_conv(x, *args, **options)
        if ends is not None:
            seen.append(ends)
            rows = ends.frames * (x.shape[1] // ends.padded_to)
            for result in (result for result in results if result is not None):
                result[torch.arange(x.shape[1]) >= rows[:, None]] = torch.nan
        return results

    num_frames = None if first is None else 30
    expected = fast(codes, first, num_frames)
    monkeypatch.setattr(code2wav_fast, "causal_conv", leave_out)
    audio = fast(codes, first, num_frames, ends)
    assert len(seen) == 1 + 4 * 7 + 1
    for row in range(3):
        start = 0 if first is None else int(first[row])
        stop = min(int(ends[row]) - start, num_frames or 60) * 1920
        torch.testing.assert_close(audio[row, :stop], expected[row, :stop], rtol=0, atol=0)


@torch.inference_mode()
@pytest.mark.parametrize(("ref_frames", "frames"), [(0, 5), (11, 5), (12, 5), (13, 5), (73, 3), (310, 20), (30, 320)])
def test_code2wav_needs_no_more_than_the_context(decoder: CodecDecoder, ref_frames: int, frames: int) -> None:
    generator = torch.Generator().manual_seed(ref_frames)
    reference = torch.randint(0, CONFIG.codebook_size, (ref_frames, 16), generator=generator)
    codes = torch.randint(0, CONFIG.codebook_size, (frames, 16), generator=generator)
    audio = []
    for context in (None, CONV_CONTEXT):
        code2wav = UtteranceCode2Wav(
            DecodePool(FastCodecDecoder(decoder, torch.float32, context), "cpu", PoolLimits(1_000))
        )
        code2wav.submit(prepared_row(ask("a"), reference if ref_frames else None).end(codes, "stop", {}))
        audio += [result.audio for result in code2wav.poll(drain=True)]
    np.testing.assert_allclose(audio[0], audio[1], rtol=0, atol=1e-5)
