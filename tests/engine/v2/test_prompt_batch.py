"""A burst's prompts, embedded together: each as alone, whatever their lengths happen to add up to."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.asking import ask
from tts_batch.engine.prepare import Preparer
from tts_batch.engine.request import Reference
from tts_batch.engine.runner import EngineRow
from tts_batch.engine.v2.packed import PackedTalker
from tts_batch.engine.v2.prompt_batch import embed_prompts
from tts_batch.model.checkpoint import resolve_checkpoint
from tts_batch.model.prompt import embed_prompt
from tts_batch.model.qwen3_tts import Qwen3TTS
from tts_batch.model.tiny import build_tiny


@functools.cache
def model() -> Qwen3TTS:
    return Qwen3TTS.load(resolve_checkpoint(str(build_tiny("tiny-random", "base"))), "cpu", torch.float64)


@functools.cache
def weights() -> PackedTalker:
    return PackedTalker.pack(model().talker, 64)


def row(ref_frames: int, num_words: int = 1, *, x_vector_only: bool = False) -> EngineRow:
    """A row whose voice has so many frames; of x-vector rows the codes are known too, though none wants them."""
    generator = torch.Generator().manual_seed(ref_frames)
    reference = Reference(
        key=str(ref_frames),
        load=lambda: pytest.fail("nothing is to be loaded"),
        text="Words.",
        codes=torch.randint(0, 2048, (ref_frames, 16), generator=generator).numpy(),
        x_vector=torch.randn(64, generator=generator).numpy(),
    )
    request = ask(task="base", text="word " * num_words, reference=reference, x_vector_only=x_vector_only, speaker=None)
    return Preparer(model()).prepare(request)


def assert_each_as_alone(rows: Sequence[EngineRow]) -> None:
    packed = embed_prompts(weights(), rows)
    alone = [embed_prompt(model().talker, r.prompt, r.ref_codes, r.x_vector) for r in rows]
    assert packed.shape[0] == sum(r.prompt.num_tokens for r in rows)
    torch.testing.assert_close(packed, torch.cat(alone), rtol=0, atol=1e-6)


@torch.inference_mode()
def test_reference_frames_equal_to_tokens_are_not_taken_for_them() -> None:
    """The mixed batch that once was cut by a length which two axes shared: here all counts that can agree do."""
    plain = [row(1, words, x_vector_only=True) for words in (1, 4)]
    tokens = sum(r.prompt.num_tokens for r in plain)
    longest = max(r.prompt.num_tokens for r in plain)
    for frames in {tokens, longest, 2 * longest}:  # total tokens, the longest row, all rows padded to it
        cloned = row(frames)
        assert len(cloned.ref_codes) == frames
        assert_each_as_alone([plain[0], cloned, plain[1]])
        assert_each_as_alone([cloned, *plain])
    for frames in range(1, 12):
        total = plain[0].prompt.num_tokens + row(frames).prompt.num_tokens
        assert_each_as_alone([row(frames), plain[0], row(total)])


@torch.inference_mode()
@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 9), st.booleans()), min_size=1, max_size=6))
def test_any_burst(burst: list[tuple[int, int, bool]]) -> None:
    assert_each_as_alone([row(frames, words, x_vector_only=only) for frames, words, only in burst])


@torch.inference_mode()
def test_codes_that_a_prompt_has_no_place_for_are_left_out() -> None:
    plain = row(5, x_vector_only=True)
    cloned = EngineRow(plain.request, plain.prompt, row(5).ref_codes, plain.x_vector, 1, 0.0, {})
    assert_each_as_alone([cloned, row(7)])


def test_what_is_packed_is_held_once() -> None:
    """The talker's own weights are views of the packed ones, and it computes as before."""
    talker = Qwen3TTS.load(resolve_checkpoint(str(build_tiny("tiny-random", "base"))), "cpu", torch.float32).talker
    before = {name: tensor.clone() for name, tensor in talker.state_dict().items()}
    packed = PackedTalker.pack(talker, 64)
    layer, source = packed.talker.layers[0], talker.stack.layers[0]
    shared = [
        (source.self_attn.v_proj, layer.qkv),
        (source.mlp.up_proj, layer.gate_up),
        (talker.code_predictor.lm_head[3], packed.lm_heads),
        (talker.model.codec_embedding, packed.frame_tables),
    ]
    for module, tensor in shared:
        assert module.weight.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    for name, tensor in talker.state_dict().items():
        assert torch.equal(tensor, before[name]), name
