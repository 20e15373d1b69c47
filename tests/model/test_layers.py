"""The decoder layers: rounding order, rotation, and independence of what else is in the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.model.attention import attend_causal
from tts_batch.model.config import StackConfig
from tts_batch.model.layers import DecoderStack, RMSNorm, rotary, rotate
from tts_batch.model.weights import fill_random

CONFIG = StackConfig(
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
)


def stack() -> DecoderStack:
    with torch.device("meta"):
        module = DecoderStack(CONFIG)
    fill_random(module, "cpu", torch.float32, seed=1)
    return module.requires_grad_(False)


def tokens(n: int, seed: int) -> Tensor:
    return torch.randn(n, CONFIG.hidden_size, generator=torch.Generator().manual_seed(seed))


def run(module: DecoderStack, x: Tensor) -> Tensor:
    return module(x, *module.rotary(torch.arange(len(x))), attend_causal)


def test_rms_norm_rounds_before_the_weight() -> None:
    norm = RMSNorm(64, 1e-6).bfloat16().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    norm.weight.copy_(torch.randn(64, generator=generator))
    x = torch.randn(50, 64, generator=generator).bfloat16()
    scaled = (x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()).bfloat16()
    assert torch.equal(norm(x), scaled * norm.weight)


def test_rotation_keeps_lengths_and_depends_on_distance_only() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 16, generator=generator)

    def score(q_position: int, k_position: int) -> Tensor:
        turned = [
            rotate(x, *rotary(torch.tensor([position]), 16, 1e4, torch.float32))
            for x, position in ((q, q_position), (k, k_position))
        ]
        torch.testing.assert_close(turned[0].norm(), q.norm())
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(score(3, 1), score(103, 101), atol=1e-5, rtol=1e-5)
    assert (score(3, 1) - score(4, 1)).abs() > 1e-2


def test_rotation_pairs_a_dimension_with_the_one_half_a_head_away() -> None:
    x = torch.zeros(1, 1, 8)
    x[..., 1] = 1.0
    turned = rotate(x, *rotary(torch.tensor([5]), 8, 1e4, torch.float32))
    assert turned.nonzero()[:, -1].tolist() == [1, 5]


def test_angles_are_exact_far_out_in_bfloat16() -> None:
    positions = torch.tensor([30_001])
    cos, sin = rotary(positions, 128, 1e6, torch.bfloat16)
    exact = (30_001 / 1e6 ** (torch.arange(0, 128, 2).double() / 128)).repeat(2)
    torch.testing.assert_close(cos[0].double(), exact.cos(), atol=6e-3, rtol=0)
    torch.testing.assert_close(sin[0].double(), exact.sin(), atol=6e-3, rtol=0)


def test_a_token_depends_on_nothing_after_it() -> None:
    module, x = stack(), tokens(9, seed=3)
    torch.testing.assert_close(run(module, x)[:5], run(module, x[:5]), atol=1e-5, rtol=1e-5)


def test_sequences_side_by_side_are_the_sequences_alone() -> None:
    module, first, second = stack(), tokens(4, seed=5), tokens(7, seed=6)

    def attend_apart(layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = zip(*(t.split([4, 7]) for t in (q, k, v)), strict=True)
        return torch.cat([attend_causal(layer_idx, *part) for part in parts])

    positions = torch.cat([torch.arange(4), torch.arange(7)])
    together = module(torch.cat([first, second]), *module.rotary(positions), attend_apart)
    alone = torch.cat([run(module, first), run(module, second)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)
