"""Each Triton kernel against its torch twin. On a machine without CUDA: TRITON_INTERPRET=1 runs them in Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from tts_batch.engine.kernels import activation, attention, frame, norm, predictor_attention, rotary_cache, sampling
from tts_batch.engine.kernels.rotary_cache import Rotation
from tts_batch.engine.loops import DEFAULT_LIMITS, LoopLimits
from tts_batch.engine.noise import seed_words
from tts_batch.engine.request import SamplingParams
from tts_batch.engine.v2.request_state import DONE_LOOP, RUNNING, RequestState, StateShape, warp_rows

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16]
EOS_ID = 2150


@contextmanager
def twins() -> Iterator[None]:
    """Run the torch twins, whatever the device."""
    modules = [activation, attention, frame, norm, predictor_attention, rotary_cache, sampling]
    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(module, "uses_triton", lambda x: False)
        yield


def randn(*size: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    return (torch.randn(*size, device=DEVICE) * scale).to(dtype)


def assert_near(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    error = (got.float() - want.float()).norm() / want.float().norm().clamp(min=1e-9)
    assert error < (1e-5 if dtype == torch.float32 else 6e-3), f"relative error {error:.2e}"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden", [64, 1024, 2048])
def test_norm(dtype: torch.dtype, hidden: int) -> None:
    x, residual, weight = randn(5, hidden, dtype=dtype), randn(5, hidden, dtype=dtype), randn(hidden, dtype=dtype)
    other = residual.clone()
    with twins():
        want, want_added = norm.rms_norm(x, weight, 1e-6), norm.add_rms_norm_(other, x, weight, 1e-6)
    assert_near(norm.rms_norm(x, weight, 1e-6), want, dtype)
    assert_near(norm.add_rms_norm_(residual, x, weight, 1e-6), want_added, dtype)
    assert torch.equal(residual, other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [160, 6144])
def test_silu_mul(dtype: torch.dtype, width: int) -> None:
    gate_up = randn(5, 2 * width, dtype=dtype)
    with twins():
        want = activation.silu_mul(gate_up)
    assert_near(activation.silu_mul(gate_up), want, dtype)


def make_rotation(dim: int, dtype: torch.dtype) -> Rotation:
    angles = torch.rand(200, dim // 2, device=DEVICE) * 6
    q_norm, k_norm = randn(dim, dtype=dtype), randn(dim, dtype=dtype)
    return Rotation(q_norm, k_norm, 1e-6, angles.cos().to(dtype), angles.sin().to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 32), (6, 2, 32), (16, 8, 128)])
def test_rotary_cache(dtype: torch.dtype, heads: int, kv_heads: int, dim: int) -> None:
    n, page_size = 7, 16
    qkv, rotation = randn(n, (heads + 2 * kv_heads) * dim, dtype=dtype), make_rotation(dim, dtype)
    positions = torch.tensor([0, 3, 99, 7, 50, 2, 1], dtype=torch.int32, device=DEVICE)
    slots = torch.tensor([0, 17, -1, 63, 40, -1, 5], dtype=torch.int32, device=DEVICE)
    caches = [torch.zeros(4, kv_heads, page_size, dim, dtype=dtype, device=DEVICE) for _ in range(4)]
    with twins():
        want = rotary_cache.rotate_and_cache(qkv, rotation, positions, slots, *caches[:2])
    got = rotary_cache.rotate_and_cache(qkv, rotation, positions, slots, *caches[2:])
    assert_near(got, want, dtype)
    assert_near(caches[2], caches[0], dtype)
    assert torch.equal(caches[3], caches[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "page_size"), [(4, 2, 32, 16), (6, 2, 32, 16), (16, 8, 128, 64), (16, 8, 128, 16)]
)
def test_decode_attention(dtype: torch.dtype, heads: int, kv_heads: int, dim: int, page_size: int) -> None:
    lens = torch.tensor([1, page_size, page_size + 1, 3 * page_size, 0], dtype=torch.int32, device=DEVICE)
    qkv, rotation = randn(5, (heads + 2 * kv_heads) * dim, dtype=dtype), make_rotation(dim, dtype)
    table = torch.randperm(20, device=DEVICE)[:15].view(5, 3).to(torch.int32)
    caches = [randn(20, kv_heads, page_size, dim, dtype=dtype) for _ in range(2)]
    stored = (torch.arange(3 * page_size, device=DEVICE) < lens[:, None] - 1).view(5, 3, 1, page_size, 1)
    for cache in caches:  # what nobody has written yet may hold anything
        cache[table.long()] = cache[table.long()].masked_fill(~stored, torch.nan)
    others = [cache.clone() for cache in caches]
    with twins():
        want = attention.decode_attention(qkv, rotation, *caches, table, lens)
    got = attention.decode_attention(qkv, rotation, *others, table, lens)
    assert_near(got, want, dtype)
    assert not got[4].any(), "the sequence is over"
    assert_near(others[0].nan_to_num(), caches[0].nan_to_num(), dtype)
    for other, cache in zip(others, caches, strict=True):
        assert torch.equal(other.isnan(), cache.isnan())
    assert torch.equal(others[1].nan_to_num(), caches[1].nan_to_num())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 32), (6, 2, 32), (16, 8, 128)])
def test_predictor_attention(dtype: torch.dtype, heads: int, kv_heads: int, dim: int) -> None:
    rows, rotation = 3, make_rotation(dim, dtype)
    caches = [torch.full((rows, kv_heads, 16, dim), torch.nan, dtype=dtype, device=DEVICE) for _ in range(4)]
    for num_stored in (0, *range(2, 16)):  # a frame: two tokens a row, then one at a time
        qkv = randn(rows * (1 if num_stored else 2), (heads + 2 * kv_heads) * dim, dtype=dtype)
        with twins():
            want = predictor_attention.predictor_attention(qkv, rotation, *caches[:2], num_stored)
        got = predictor_attention.predictor_attention(qkv, rotation, *caches[2:], num_stored)
        assert_near(got, want, dtype)
    assert_near(caches[2], caches[0], dtype)
    assert torch.equal(caches[3], caches[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(4, 2, 32), (16, 8, 128)])
def test_prefill_attention(dtype: torch.dtype, heads: int, kv_heads: int, dim: int) -> None:
    page_size, lens, starts = 64, [1, 70, 130], [0, 64, 5]
    cu = torch.tensor([0, 1, 71, 201], dtype=torch.int32, device=DEVICE)
    stored = torch.tensor(starts, dtype=torch.int32, device=DEVICE)
    q = randn(201, heads, dim, dtype=dtype)
    k, v = (randn(12, kv_heads, page_size, dim, dtype=dtype) for _ in range(2))
    table = torch.randperm(12, device=DEVICE)[:9].view(3, 3).to(torch.int32)
    with twins():
        want = attention.prefill_attention(q, k, v, table, cu, stored, max(lens))
    assert_near(attention.prefill_attention(q, k, v, table, cu, stored, max(lens)), want, dtype)


def make_state(params: list[SamplingParams], num_frames: list[int], max_frames: int = 9) -> RequestState:
    num_slots = len(params)
    shape = StateShape(num_slots, 64, 3072, 16, 4, 3, pad_text_id=5)
    state = RequestState(shape, torch.float32, DEVICE)
    floats, ints = warp_rows(params)
    state.warp_floats.copy_(floats)
    state.warp_ints.copy_(ints)
    state.seeds.copy_(seed_words([2**40 + i for i in range(num_slots)]))
    state.num_frames.copy_(torch.tensor(num_frames))
    state.max_frames.fill_(max_frames)
    state.seen[:, :2048] = torch.rand(num_slots, 2048, device=DEVICE) < 0.02
    state.done.fill_(RUNNING)
    state.trailing_ids.copy_(torch.arange(num_slots * 4).view(num_slots, 4))
    state.trailing_lens.fill_(2)
    state.positions.copy_(torch.arange(num_slots) + 30)
    state.block_table.copy_(torch.arange(num_slots * 3).view(num_slots, 3))
    return state


PARAMS = [
    SamplingParams(),
    SamplingParams(do_sample=False, subtalker_dosample=False),
    SamplingParams(top_p=0.8, top_k=20, subtalker_top_p=0.7, subtalker_top_k=10),
    SamplingParams(top_k=0, temperature=0.7, repetition_penalty=1.3),
    SamplingParams(top_k=0, top_p=0.9),
    SamplingParams(top_k=1),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_sampling(dtype: torch.dtype) -> None:
    rounds, rows = 40, len(PARAMS)
    params = PARAMS * rounds
    frames = [(i // rows) % 10 for i in range(rows * rounds)]  # 0, 1: EOS is banned; 9: the budget is used up
    logits = randn(rows * rounds, 3072, dtype=dtype, scale=3.0)
    logits[:, EOS_ID] = torch.where(torch.arange(rows * rounds, device=DEVICE) % 4 == 0, 14.0, -1.0).to(dtype)
    others = randn(rows * rounds, 2048, dtype=dtype, scale=3.0)
    slots = torch.randperm(rows * rounds, device=DEVICE).to(torch.int32)
    table, table15 = randn(3072, 32), randn(2048, 32)
    results = []
    for run_twin in (True, False):
        torch.manual_seed(7)
        state = make_state(params, frames)
        codes = torch.zeros(rows * rounds, 16, dtype=torch.int32, device=DEVICE)
        x = torch.zeros(rows * rounds, 2, 32, device=DEVICE)
        last = torch.zeros(rows * rounds, 32, device=DEVICE)
        if run_twin:
            with twins():
                sampling.sample_code0(state, slots, logits, EOS_ID, codes, table, x[:, 1])
                sampling.sample_code(state, slots, others, 3, codes, table15, last)
        else:
            sampling.sample_code0(state, slots, logits, EOS_ID, codes, table, x[:, 1])
            sampling.sample_code(state, slots, others, 3, codes, table15, last)
        results.append((codes, state.done, state.seen, x, last))
    for name, want, got in zip(("codes", "done", "seen", "x", "last"), *results, strict=True):
        assert torch.equal(got, want), name
    assert set(results[0][1].tolist()) == {0, 1, 2}


def test_frame_end() -> None:
    results = []
    slots = torch.tensor([3, 0, 2, 5], dtype=torch.int32, device=DEVICE)
    codes = torch.randint(0, 2048, (4, 16), dtype=torch.int32, device=DEVICE)
    tables, texts = randn(3072 + 15 * 2048, 96), randn(40, 96)
    offsets = torch.tensor([0, *range(3072, 3072 + 15 * 2048, 2048)], dtype=torch.int32, device=DEVICE)
    for run_twin in (True, False):
        torch.manual_seed(7)
        state = make_state(PARAMS, [0, 1, 2, 3, 4, 8])
        state.done[2] = 1
        with twins() if run_twin else pytest.MonkeyPatch.context():
            step = frame.append_frame(state, slots, codes, DEFAULT_LIMITS)
            x = frame.embed_frame(codes, tables, offsets, step[1], texts)
        results.append((*step, x, state.codes, state.num_frames, state.positions))
    for want, got in zip(*results, strict=True):
        assert torch.allclose(got.float(), want.float(), atol=1e-5)


@pytest.mark.parametrize("limits", [LoopLimits(3, 5), LoopLimits(0, 5), LoopLimits(3, 0), LoopLimits(0, 0)])
def test_loops(limits: LoopLimits) -> None:
    slots = torch.tensor([5, 1, 4, 0], dtype=torch.int32, device=DEVICE)
    # Few codes in any order; an n-gram of three; always another; few again, though with a code of 0 at the start.
    few = torch.randint(0, 3, (16,))
    code0 = torch.stack([few, torch.arange(16) % 3 + 7, torch.arange(16), few.roll(5)], dim=1)
    results = []
    for run_twin in (True, False):
        torch.manual_seed(7)
        state = make_state(PARAMS, [0] * 6, max_frames=16)
        with twins() if run_twin else pytest.MonkeyPatch.context():
            for new in code0:
                codes = new[:, None].repeat(1, 16).to(torch.int32).to(DEVICE)
                frame.append_frame(state, slots, codes, limits)
        results.append((state.done, state.repeats, state.few, state.num_frames, state.codes))
    for name, want, got in zip(("done", "repeats", "few", "num_frames", "codes"), *results, strict=True):
        assert torch.equal(got, want), name
    done = results[0][0][slots.long()].tolist()
    assert done[2] == RUNNING
    assert (DONE_LOOP in done) == (limits != LoopLimits(0, 0))
