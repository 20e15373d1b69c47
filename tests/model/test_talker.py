"""The talker and its code predictor against the official logits."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.model.attention import attend_causal
from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.talker import Talker
from tts_batch.model.tiny import build_tiny

GOLDEN = Path(__file__).parents[1] / "golden"
LOGITS = 1e-4


@functools.cache
def load(kind: str, size: str = "1b7", dtype: torch.dtype = torch.float32) -> Talker:
    return Qwen3TTS.load(resolve_checkpoint(str(build_tiny("tiny-random", kind, size))), "cpu", dtype).talker


@pytest.mark.parametrize(
    ("name", "kind", "size"),
    [
        ("base_icl_greedy", "base", "1b7"),
        ("base_xvec_greedy", "base", "1b7"),
        ("cv_greedy", "custom_voice", "1b7"),
        ("cv06_greedy_instruct_ignored", "custom_voice", "0b6"),
        ("vd_greedy", "voice_design", "1b7"),
    ],
)
@torch.inference_mode()
def test_the_official_logits(name: str, kind: str, size: str) -> None:
    """The official codes are fed; no code of ours decides what comes next."""
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        golden = {key: torch.from_numpy(arrays[key]) for key in arrays.files if key != "meta"}
    talker, codes = load(kind, size), golden["codes_0"]
    trailing = golden["tts_pad_embed"][0].repeat(len(codes), 1)
    given = golden["trailing_text_hidden"][0][: len(codes)]
    trailing[: len(given)] = given
    prompt = golden["inputs_embeds"][0]
    x = torch.cat([prompt, talker.embed_frames(codes) + trailing])

    hidden = talker.stack(x, *talker.stack.rotary(torch.arange(len(x))), attend_causal)[len(prompt) - 1 :]
    expected = golden["talker_logits"][:, 0]
    torch.testing.assert_close(talker.codec_head(hidden)[: len(expected)], expected, atol=LOGITS, rtol=0)

    predictor = talker.code_predictor
    cos, sin = predictor.stack.rotary(torch.arange(16))
    for frame, expected in enumerate(golden["predictor_logits_first"][: len(codes), :, 0]):
        vectors = [predictor.project(hidden[frame]), predictor.project(talker.embed_code0(codes[frame, 0]))]
        vectors += [predictor.embed(g, codes[frame, g]) for g in range(1, 15)]
        states = predictor.stack(torch.stack(vectors), cos, sin, attend_causal)
        logits = torch.stack([predictor.logits(g, states[g]) for g in range(1, 16)])
        torch.testing.assert_close(logits, expected, atol=LOGITS, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_frame_is_summed_in_float32_and_rounded_once(dtype: torch.dtype) -> None:
    talker = load("base", dtype=dtype)
    codes = torch.randint(0, 2048, (5, 7, 16), generator=torch.Generator().manual_seed(0))
    tables = [talker.model.codec_embedding, *talker.code_predictor.model.codec_embedding]
    exact = sum(table.weight.double()[codes[..., g]] for g, table in enumerate(tables))
    frames = talker.embed_frames(codes)
    assert (frames.shape, frames.dtype) == ((5, 7, 64), dtype)
    # One rounding is at most half a unit in the last place; the sum in float32 adds next to nothing.
    torch.testing.assert_close(frames.double(), exact, rtol=torch.finfo(dtype).eps * 0.51, atol=1e-6)


def test_the_small_predictor_reads_the_talker_s_vectors_unchanged() -> None:
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(load("custom_voice", "0b6").code_predictor.project(x), x)
    assert load("custom_voice").code_predictor.project(x).shape == (3, 32)
