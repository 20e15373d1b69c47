"""The dense cache: packed prefill and steps attend exactly as each row would alone."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from tts_batch.engine.v1.kv_cache import GROWTH, DenseKVCache

HEADS, KV_HEADS, DIM, LAYERS = 4, 2, 8, 2
LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=4)


def new_cache(rows: int, capacity: int) -> DenseKVCache:
    return DenseKVCache(
        num_layers=LAYERS,
        num_rows=rows,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        capacity=capacity,
        device=torch.device("cpu"),
        dtype=torch.float32,
    )


def qkv(tokens: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tuple(torch.randn(tokens, heads, DIM, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS))


def alone(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)


@settings(max_examples=40, deadline=None)
@given(LENGTHS, st.integers(1, 4), st.integers(1, 20), st.data())
def test_rows_attend_as_if_alone(lengths: list[int], steps: int, capacity: int, data: st.DataObject) -> None:
    generator = torch.Generator().manual_seed(sum(lengths) + steps)
    rows = [[qkv(length + steps, generator) for length in lengths] for _ in range(LAYERS)]
    cache = new_cache(len(lengths), capacity)

    prefill = cache.prefill(lengths)
    for layer in range(LAYERS):
        packed = [
            torch.cat([row[part][:length] for row, length in zip(rows[layer], lengths, strict=True)])
            for part in range(3)
        ]
        parts = prefill(layer, *packed).split(lengths)
        for got, row, length in zip(parts, rows[layer], lengths, strict=True):
            torch.testing.assert_close(got, alone(*(x[:length] for x in row)))

    kept = data.draw(st.lists(st.sampled_from(range(len(lengths))), min_size=1, unique=True))
    cache.select(torch.tensor(kept))
    for step in range(steps):
        positions = torch.tensor([lengths[row] + step for row in kept])
        attend = cache.step(positions, int(positions.max()) + 1)
        for layer in range(LAYERS):
            new = [torch.stack([rows[layer][row][part][lengths[row] + step] for row in kept]) for part in range(3)]
            got = attend(layer, *new)
            for i, row in enumerate(kept):
                whole = alone(*(x[: lengths[row] + step + 1] for x in rows[layer][row]))
                torch.testing.assert_close(got[i], whole[-1])


def test_grows_in_strides_and_keeps_what_it_holds() -> None:
    generator = torch.Generator().manual_seed(0)
    cache = new_cache(1, capacity=3)
    q, k, v = qkv(4, generator)
    cache.prefill([3])(0, q[:3], k[:3], v[:3])
    assert cache.capacity == 3
    got = cache.step(torch.tensor([3]), 4)(0, q[3:], k[3:], v[3:])
    assert cache.capacity == 3 + GROWTH
    torch.testing.assert_close(got, alone(q, k, v)[3:])
