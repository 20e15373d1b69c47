"""Compiles every kernel that the released shapes launch, for cards that are not here, and compares shared memory.

    python -m benchmarks.kernels.compile_check [--cards 80 86 89 90 100 120] [--shapes 1.7b] [--dtypes bfloat16]

No GPU is needed: the engine's own code runs on tensors without values, and each launch is compiled for the card and not
run. A launch over the card's limit fails as it would there, so that the engine goes on to its next tile. Exit status 1:
a kernel fits nowhere, and would be left to torch. sm75 launches none: has_kernels sends it to torch's own operations.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction

from tts_batch.engine.choices import KV_PAGE_TOKENS
from tts_batch.engine.code2wav.fast_decoder import FastCodecDecoder
from tts_batch.engine.kernels import attention, backend, causal_conv, predictor_attention, small_batch
from tts_batch.engine.loops import DEFAULT_LIMITS
from tts_batch.engine.v2.frame_loop import FrameLoop, PrefillRows, PrefillTokens
from tts_batch.engine.v2.packed import PackedTalker
from tts_batch.engine.v2.request_state import RequestState, StateShape
from tts_batch.model.config import CodecConfig, ModelConfig
from tts_batch.model.qwen3_tts import Qwen3TTS

SHARED_BYTES = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
"""What a block may have at most, by compute capability times ten."""

SHAPES = {"1.7b": "base_1b7", "0.6b": "base_0b6"}
ROWS = (1, 2_048)  # the kernels of small batches, and the others
PIECES, FRAMES = 2, 40


class FakeDriver:
    """What Triton asks of a driver before it launches: a card, and nothing of it."""

    def __init__(self, card: int) -> None:
        self._card = card

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._card, 32)

    def get_current_device(self) -> int:
        return self._card  # Triton keeps what it compiled by device

    def get_current_stream(self, device: int) -> int:
        return 0


@dataclass(slots=True)
class Checked:
    """The launches of one card: shared bytes by kernel and variant, and what did not fit at first."""

    card: int
    launched: dict[tuple[str, str], int] = field(default_factory=dict)
    over: list[str] = field(default_factory=list)
    left_to_torch: list[str] = field(default_factory=list)

    @property
    def largest(self) -> dict[str, int]:
        """The largest launch of each kernel."""
        largest: dict[str, int] = {}
        for (name, _), shared in self.launched.items():
            largest[name] = max(shared, largest.get(name, 0))
        return largest


@contextmanager
def compiling_for(card: int) -> Iterator[Checked]:
    """Within it every launch is compiled for a card, and recorded, instead of run."""
    checked, run, fitting = Checked(card), JITFunction.run, backend.launch_fitting
    limit = SHARED_BYTES[card]

    def compiled(self: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        shared = kernel.metadata.shared
        if shared > limit:
            checked.over.append(f"{kernel.name}: {shared:,} bytes")
            raise OutOfResources(shared, limit, "shared memory")
        checked.launched[kernel.name, kernel.hash] = shared

    def watched(key: Any, options: Any, launch: Any) -> bool:
        fits = fitting((card, key), options, launch)
        if not fits:
            checked.left_to_torch.append(str(key))
        return fits

    is_late = card >= 90  # what sm90 brought
    with ExitStack() as patches:
        for target, name, value in (
            (JITFunction, "run", compiled),
            (backend, "_INTERPRETED", True),  # kernels for tensors that are on no GPU
            *((module, "launches_early", lambda device: is_late)
              for module in (attention, predictor_attention, small_batch)),
            (causal_conv, "has_copy_engine", lambda device: is_late),
            (causal_conv, "shared_bytes", lambda device: limit),
            (small_batch, "is_hopper", lambda device: card == 90),
            *((module, "launch_fitting", watched) for module in (attention, causal_conv)),
        ):  # fmt: skip
            patches.enter_context(patch.object(target, name, value))
        patches.enter_context(patch.object(triton.runtime.driver, "_active", FakeDriver(card)))
        yield checked


def released(shape: str) -> Qwen3TTS:
    """A released shape on the meta device."""
    folder = files("tts_batch.model") / "released"
    config = ModelConfig.from_json(json.loads((folder / f"{SHAPES[shape]}.json").read_text()))
    codec = CodecConfig.from_json(json.loads((folder / "speech_tokenizer.json").read_text()))
    return Qwen3TTS(config, codec)


@torch.inference_mode()
def launch_talker(model: Qwen3TTS, dtype: torch.dtype, rows: Sequence[int] = ROWS) -> None:
    """A prefill, and a frame of each number of rows."""
    config = model.config.talker
    model.network.to(dtype)
    weights = PackedTalker.pack(model.talker, 4_096)
    state = RequestState(
        StateShape(max(rows), config.hidden_size, config.vocab_size, 1_000, 1_000, 64, 0), dtype, "meta"
    )
    pages = torch.empty(
        config.num_hidden_layers, 2, 256, config.num_key_value_heads, KV_PAGE_TOKENS, config.head_dim,
        dtype=dtype, device="meta",
    )  # fmt: skip
    loop = FrameLoop(weights, state, pages, config.codec_eos_token_id, DEFAULT_LIMITS)
    for count in rows:
        loop.run_frame(torch.zeros(count, dtype=torch.int32, device="meta"))
    ints = torch.zeros(300, dtype=torch.int32, device="meta")
    loop.run_prefill(
        PrefillTokens(torch.zeros(300, config.hidden_size, dtype=dtype, device="meta"), ints, ints),
        PrefillRows(torch.zeros(3, 64, dtype=torch.int32, device="meta"), ints[:4], ints[:3], max_len=100),
    )


@torch.inference_mode()
def launch_codec(model: Qwen3TTS, dtype: torch.dtype) -> None:
    """A batch of clips with context and padding, as Code2Wav decodes them."""
    decoder = FastCodecDecoder(model.speech_tokenizer.decoder, dtype)
    codes = torch.zeros(PIECES, 16, FRAMES, dtype=torch.int64, device="meta")
    first, ends = torch.zeros(2, PIECES, dtype=torch.int64, device="meta")
    decoder(codes, first, FRAMES - 5, ends)


def check(card: int, shapes: Sequence[str], dtypes: Sequence[str]) -> Checked:
    """Compile all launches of some shapes for one card."""
    with compiling_for(card) as checked:
        for dtype in (getattr(torch, name) for name in dtypes):
            for shape in shapes:
                launch_talker(released(shape), dtype)
        launch_codec(released(shapes[0]), torch.bfloat16)  # of both shapes, and in bfloat16 alone
    return checked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cards", type=int, nargs="+", default=list(SHARED_BYTES), choices=list(SHARED_BYTES))
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"], choices=["bfloat16", "float32"])
    args = parser.parse_args()
    failed = False
    for card in args.cards:
        started_s = time.monotonic()
        checked = check(card, args.shapes, args.dtypes)
        failed |= bool(checked.left_to_torch)
        print(f"sm{card}: {len(checked.launched)} launches compiled in {time.monotonic() - started_s:.0f} s, "
              f"at most {max(checked.launched.values()):,} of {SHARED_BYTES[card]:,} bytes")  # fmt: skip
        for name, shared in sorted(checked.largest.items()):
            print(f"  {name:<26} {shared:>8,}")
        for what, lines in (("over, and launched smaller", checked.over), ("left to torch", checked.left_to_torch)):
            print("".join(f"  {what}: {line}\n" for line in lines), end="", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
