"""The kernels for few rows against their torch twins; a stack and a whole frame with and without them.

On a machine without CUDA: TRITON_INTERPRET=1 runs them in Python.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from tests.gpu.test_kernels import DEVICE, EOS_ID, assert_near, randn
from tts_batch.engine.cuda_graphs import CudaGraphs
from tts_batch.engine.kernels import activation, norm, small_batch
from tts_batch.engine.kernels.backend import launches_early
from tts_batch.engine.kernels.small_batch import (
    MOST_ROWS,
    MOST_TILES,
    TILES,
    Tile,
    has_tiles,
    linear_add_,
    make_arrivals,
    norm_gate_up_silu,
    norm_linear,
)
from tts_batch.engine.loops import DEFAULT_LIMITS
from tts_batch.engine.noise import seed_words
from tts_batch.engine.request import SamplingParams
from tts_batch.engine.v2 import packed
from tts_batch.engine.v2.frame_loop import FrameLoop
from tts_batch.engine.v2.packed import PackedStack, PackedTalker
from tts_batch.engine.v2.request_state import RUNNING, RequestState, StateShape, warp_rows
from tts_batch.model.config import CodePredictorConfig, StackConfig, TalkerConfig
from tts_batch.model.layers import DecoderStack
from tts_batch.model.talker import Talker

HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # Triton's interpreter has no bfloat16
EPS = 1e-6
SHAPES = [(192, 256), (384, 256), (256, 192)]  # of norm_linear, gate_up and linear_add
CUTS = [Tile(16, 2, 4), Tile(32, 4, 4), Tile(64, 4, 8)]
PARTS = 8


def use_tiles(patch: pytest.MonkeyPatch, tile: Tile) -> None:
    """Cut the products of SHAPES so, the last of them with a depth that has three times as many parts."""
    for shape in SHAPES[:2]:
        patch.setitem(TILES, shape, tile)
    thirds = Tile(tile.cols, 3 * tile.splits, tile.num_warps)
    patch.setitem(TILES, SHAPES[2], thirds)


def use_twins(patch: pytest.MonkeyPatch) -> None:
    for module in (activation, norm, small_batch):
        patch.setattr(module, "uses_triton", lambda x: False)


def square_sums(x: Tensor) -> Tensor:
    return x.float().pow(2).unflatten(-1, (PARTS, -1)).sum(-1)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("rows", [1, 9, 16])
@pytest.mark.parametrize("tile", CUTS)
def test_products(dtype: torch.dtype, rows: int, tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiles(monkeypatch, tile)
    weights = [randn(*shape, dtype=dtype, scale=0.1) for shape in SHAPES]
    x, a = randn(rows, 256, dtype=dtype), randn(rows, 192, dtype=dtype)
    norm_weight, arrivals = randn(256, dtype=dtype), make_arrivals(x.device)
    results = []
    for is_twin in (False, True):
        if is_twin:
            use_twins(monkeypatch)
        stream = x.clone()
        new_sums = linear_add_(a, weights[2], stream, arrivals)
        linear = norm_linear(x, square_sums(x), norm_weight, weights[0], EPS, arrivals)
        gated = norm_gate_up_silu(x, square_sums(x), norm_weight, weights[1], EPS, arrivals)
        results.append((stream, new_sums.sum(1), linear, gated))
    for got, want in zip(*results, strict=True):
        assert_near(got, want, dtype)
    assert not arrivals.any()  # the next kernel finds them as this one did


def test_more_rows_than_a_tile_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    use_tiles(monkeypatch, CUTS[0])
    a, weight, x = randn(17, 192), randn(256, 192), randn(17, 256)
    with pytest.raises(ValueError, match="17 rows"):
        linear_add_(a, weight, x, make_arrivals(x.device))


def test_every_tile_fits_its_product() -> None:
    kinds = {(4096, 1024): 4096, (6144, 1024): 3072, (1024, 2048): 1024, (1024, 3072): 1024}
    assert kinds.keys() == TILES.keys()
    for shape, width in kinds.items():
        tile = TILES[shape]
        num_tiles, length = width // tile.cols, shape[1] // tile.splits
        assert num_tiles * tile.cols == width and num_tiles <= MOST_TILES
        assert length * tile.splits == shape[1] and length.bit_count() == 1
        assert num_tiles.bit_count() == 1 or width != 1024  # as many sums, which the next kernel reads at once


def test_only_what_was_measured_has_tiles() -> None:
    is_hopper = launches_early(torch.device(DEVICE))
    assert has_tiles(*(randn(*shape, dtype=HALF) for shape in TILES)) == is_hopper
    assert not has_tiles(*(randn(*shape) for shape in TILES))
    assert not has_tiles(*(randn(*shape, dtype=HALF) for shape in [*TILES, (2048, 2048)]))


def stack_config(layers: int, hidden: int) -> StackConfig:
    return StackConfig(
        hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, rms_norm_eps=EPS, rope_theta=1e6,
    )  # fmt: skip


@torch.inference_mode()
@pytest.mark.parametrize("rows", [9, 16, 17])
def test_a_stack_with_and_without(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the shape of the code predictor and the 0.6B talker."""
    served: list[object] = []
    monkeypatch.setattr(packed, "has_tiles", lambda *weights: True)
    monkeypatch.setattr(packed, "linear_add_", lambda *args: served.append(args) or linear_add_(*args))
    torch.manual_seed(3)
    stack = DecoderStack(stack_config(layers=2, hidden=1024)).to(DEVICE, HALF)
    x = randn(rows, 1024, dtype=HALF)
    streams, hidden = [], []
    for allowed in (True, False):
        streams.append(x.clone())
        chosen = PackedStack(stack, 8, small_batch_kernels=allowed)
        hidden.append(chosen.forward(streams[-1], lambda layer_idx, qkv: qkv[:, :2048].contiguous()))
    assert_near(streams[0], streams[1], HALF)
    assert_near(hidden[0], hidden[1], HALF)
    assert len(served) == (4 if rows <= MOST_ROWS else 0)  # two sums a layer


def make_talker(hidden: int) -> Talker:
    """Layers of a released shape, few of them, with random weights."""
    stack = {
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": EPS, "rope_theta": 1e6,
        "num_hidden_layers": 2,
    }  # fmt: skip
    talker = TalkerConfig(
        hidden_size=hidden, intermediate_size=3 * hidden, vocab_size=3072, text_vocab_size=64, text_hidden_size=64,
        num_code_groups=16, max_position_embeddings=1024, codec_pad_id=2148, codec_bos_id=2149,
        codec_eos_token_id=EOS_ID, codec_think_id=2154, codec_nothink_id=2155, codec_think_bos_id=2156,
        codec_think_eos_id=2157, **stack,
    )  # fmt: skip
    predictor = CodePredictorConfig(
        hidden_size=1024, intermediate_size=3072, vocab_size=2048, num_code_groups=16, **stack
    )
    torch.manual_seed(0)
    return Talker(talker, predictor).to(DEVICE, HALF).eval()


def make_loop(weights: PackedTalker, rows: int, seeds: list[int]) -> FrameLoop:
    """Rows behind a prompt of 40 tokens, each with a state that follows from its seed."""
    hidden = weights.frame_tables.shape[1]
    state = RequestState(StateShape(rows, hidden, 3072, 16, 4, 1, pad_text_id=5), HALF, DEVICE)
    pages = torch.empty(2, 2, rows, 8, 64, 128, dtype=HALF, device=DEVICE)
    for row, seed in enumerate(seeds):
        generator = torch.Generator().manual_seed(seed)
        pages[:, :, row] = torch.randn(2, 2, 8, 64, 128, generator=generator).to(DEVICE, HALF)
        state.hidden[row] = torch.randn(hidden, generator=generator).to(DEVICE, HALF)
    state.positions.fill_(40)
    state.max_frames.fill_(12)
    state.block_table.copy_(torch.arange(rows).view(rows, 1))
    state.seeds.copy_(seed_words(seeds))
    floats, ints = warp_rows([SamplingParams(min_new_tokens=16)] * rows)
    state.warp_floats.copy_(floats)
    state.warp_ints.copy_(ints)
    state.done.fill_(RUNNING)
    return FrameLoop(weights, state, pages, EOS_ID, DEFAULT_LIMITS)


def run_frames(weights: PackedTalker, seeds: list[int], on_graphs: bool) -> tuple[Tensor, Tensor]:
    """Six frames: the codes of every row, and the hidden states that the next frame would begin with."""
    graphs = CudaGraphs(on_graphs, "test")
    loop = make_loop(weights, len(seeds), seeds)
    run = partial(loop.run_frame, torch.arange(len(seeds), dtype=torch.int32, device=DEVICE))
    if on_graphs:
        graphs.capture("frame", run)  # runs the first frame
    for _ in range(6 - on_graphs):
        graphs.run("frame", run)
    return loop.state.codes[:, :6].clone(), loop.state.hidden.clone()


@torch.inference_mode()
@pytest.mark.skipif(DEVICE != "cuda", reason="CUDA graphs")
@pytest.mark.parametrize("rows", [1, 8, 16, 32])
@pytest.mark.parametrize("hidden", [1024, 2048])
def test_a_frame_is_the_same_replayed_again_and_in_other_company(hidden: int, rows: int) -> None:
    weights = PackedTalker.pack(make_talker(hidden), 1024)
    if launches_early(torch.device(DEVICE)):
        assert weights.predictor.small_batch == MOST_ROWS
        assert weights.talker.small_batch == (MOST_ROWS if hidden == 1024 else 0)
    seeds = list(range(rows))
    codes, state = run_frames(weights, seeds, on_graphs=False)
    assert codes.any()
    for on_graphs in (True, True, False):
        again = run_frames(weights, seeds, on_graphs)
        assert torch.equal(again[0], codes)
        assert torch.equal(again[1], state)
    company = [seeds[0], *(1000 + seed for seed in seeds[1:])]
    other = run_frames(weights, company, on_graphs=True)
    assert torch.equal(other[0][0], codes[0])
    assert torch.equal(other[1][0], state[0])
    assert rows == 1 or not torch.equal(other[0], codes)
