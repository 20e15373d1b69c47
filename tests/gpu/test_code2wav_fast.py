"""The fast codec decoder's kernels, at the released widths, against the exact decoder in float32."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.engine.random_codec import CONFIG, random_decoder, relative_error
from tts_batch.engine.code2wav.fast_decoder import FastCodecDecoder
from tts_batch.model.speech_tokenizer.decoder import CodecDecoder

RELEASED = dataclasses.replace(
    CONFIG,
    codebook_size=2048,
    codebook_dim=512,
    latent_dim=1024,
    hidden_size=512,
    intermediate_size=1024,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=16,
    head_dim=64,
    sliding_window=72,
    decoder_dim=1536,
)


@pytest.fixture(scope="module")
def decoder() -> CodecDecoder:
    torch.backends.cudnn.allow_tf32 = False
    return random_decoder(RELEASED).cuda()


@pytest.fixture
def codes() -> torch.Tensor:
    return torch.randint(0, 2048, (3, 16, 101), generator=torch.Generator().manual_seed(1)).cuda()


@torch.no_grad()
def test_bfloat16_is_no_further_from_float32_than_the_exact_decoder_in_bfloat16(
    decoder: CodecDecoder, codes: torch.Tensor
) -> None:
    expected = decoder(codes)
    fast = relative_error(FastCodecDecoder(decoder)(codes), expected)
    rounded = CodecDecoder(RELEASED).cuda()
    rounded.load_state_dict(decoder.state_dict())
    assert 1e-4 < fast < 1.1 * relative_error(rounded.bfloat16()(codes), expected)


def test_a_row_is_the_same_alone_and_in_a_padded_batch(decoder: CodecDecoder, codes: torch.Tensor) -> None:
    fast = FastCodecDecoder(decoder)
    padded = torch.cat([codes, torch.full((3, 16, 27), -1, device="cuda")], dim=2)
    alone = fast(codes[1:2])
    assert relative_error(fast(padded)[1:2, : 101 * 1920], alone) < 5e-3


@pytest.mark.parametrize("first", [None, torch.tensor([0, 17, 40])])
def test_what_lies_behind_the_end_of_a_row_is_not_heard_before_it(
    decoder: CodecDecoder, codes: torch.Tensor, first: torch.Tensor | None
) -> None:
    fast = FastCodecDecoder(decoder)
    ends = torch.tensor([30, 101, 77])
    where = (None, None) if first is None else (first.cuda(), 61)
    expected, audio = fast(codes, *where), fast(codes, *where, ends=ends.cuda())
    for row in range(3):
        wanted = (ends[row] - (0 if first is None else first[row])) * 1920
        torch.testing.assert_close(audio[row, :wanted], expected[row, :wanted], rtol=0, atol=0)


def test_a_graph_replays_what_was_computed(decoder: CodecDecoder, codes: torch.Tensor) -> None:
    fast = FastCodecDecoder(decoder)
    static = torch.zeros_like(codes)
    fast(static)  # compile before capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        audio = fast(static)
    static.copy_(codes)
    graph.replay()
    torch.testing.assert_close(audio, fast(codes), rtol=0, atol=0)
