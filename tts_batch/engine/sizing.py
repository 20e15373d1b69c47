"""How much of everything fits a device: rows, KV pages, Code2Wav frames, prefill tokens, seconds of references.

Pure functions. Importing it loads no torch: the plan asks it before any engine is opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tts_batch.engine.choices import KV_PAGE_TOKENS, ROW_BUCKETS
from tts_batch.engine.errors import EngineConfigError
from tts_batch.engine.request import NUM_CODEBOOKS, SAMPLES_PER_FRAME

if TYPE_CHECKING:
    from tts_batch.model.config import CodecDecoderConfig, TalkerConfig

MIB = 2**20
GIB = 2**30

# Shares of what is free once the weights are packed and a reserve is kept for libraries, graphs and fragments.
RESERVE_BYTES = 0.4 * GIB
RESERVE_SHARE = 0.03
CODE2WAV_SHARE = 0.25
REFERENCE_SHARE = 0.12
PREFILL_SHARE = 0.04

PAGES_PER_ROW = 5  # of 64 tokens: what a row of common length holds
LEAST_FRAMES = 325  # one piece of a clip, with its context, is decoded whole
LEAST_PREFILL_TOKENS = 256
LEAST_REFERENCE_S = 10.0
MOST_REFERENCE_S = 96.0
REFERENCE_BYTES_PER_S = 23 * MIB  # the encoders, measured on the released codec in float32
GRAPH_BYTES_PER_ROW = 0.38 * MIB  # of the frame graphs' pool, measured: 772 MiB at 2,048 rows
LIVE_TENSORS = 5  # of the codec's last and widest block, of which at most so many are alive at once


@dataclass(frozen=True, slots=True)
class Costs:
    """What one of each takes on the device, in bytes."""

    row: float  # a slot of the state, and its part of the graphs
    page: float  # of KV
    frame: float  # of a Code2Wav batch
    token: float  # of a prefill pass


@dataclass(frozen=True, slots=True)
class Limits:
    """The most of each that the profile and the options allow."""

    max_num_seqs: int
    num_pages: int
    code2wav_frames: int
    prefill_tokens: int
    kv_share: float = 1.0  # of the free memory, for the KV cache


LEAST = Limits(max_num_seqs=1, num_pages=PAGES_PER_ROW, code2wav_frames=LEAST_FRAMES, prefill_tokens=256)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What an engine takes at once."""

    max_num_seqs: int
    num_pages: int
    code2wav_frames: int
    prefill_tokens: int
    reference_s: float


def costs_of(talker: TalkerConfig, codec: CodecDecoderConfig, number_bytes: int, max_frames: int) -> Costs:
    """The costs of a model whose numbers take `number_bytes`, for rows of at most `max_frames` frames."""
    kv_width = talker.num_key_value_heads * talker.head_dim
    qkv_width = talker.num_attention_heads * talker.head_dim + 2 * kv_width
    last_channels = codec.decoder_dim // 2 ** len(codec.upsample_rates)
    widest = 4 * talker.hidden_size + qkv_width + 3 * talker.intermediate_size
    return Costs(
        row=max_frames * (2 * NUM_CODEBOOKS + 4) + 16 * 1024 + GRAPH_BYTES_PER_ROW,
        page=2 * talker.num_hidden_layers * kv_width * KV_PAGE_TOKENS * number_bytes,
        frame=LIVE_TENSORS * SAMPLES_PER_FRAME * last_channels * number_bytes,
        token=widest * number_bytes,
    )


def fit(free_bytes: float, costs: Costs, limits: Limits, codec_free_bytes: float | None = None) -> Sizes | None:
    """The sizes for `free_bytes` of a device that holds the weights already; None if it cannot hold one row.

    Everything but the KV cache gets a share of what is free, and no more than its limit; the KV cache gets the rest.
    With Code2Wav on a device of its own, `codec_free_bytes` is what is free there.
    """
    spare = _spare(free_bytes)
    left = spare
    if codec_free_bytes is None:
        frames = _part(spare * CODE2WAV_SHARE, costs.frame, LEAST_FRAMES, limits.code2wav_frames)
        left -= frames * costs.frame
    else:
        codec_spare = _spare(codec_free_bytes)
        frames = _part(codec_spare, costs.frame, LEAST_FRAMES, limits.code2wav_frames)
        if frames * costs.frame > codec_spare:
            return None
    tokens = _part(spare * PREFILL_SHARE, costs.token, LEAST_PREFILL_TOKENS, limits.prefill_tokens)
    tokens = tokens // 256 * 256 or tokens
    left -= tokens * costs.token
    reference_s = spare * REFERENCE_SHARE / REFERENCE_BYTES_PER_S
    reference_s = min(MOST_REFERENCE_S, max(LEAST_REFERENCE_S, float(int(reference_s))))
    left -= reference_s * REFERENCE_BYTES_PER_S
    rows = min(limits.max_num_seqs, int(left / (costs.row + PAGES_PER_ROW * costs.page)))
    if rows < 1:
        return None
    if rows < limits.max_num_seqs:
        rows = max(bucket for bucket in ROW_BUCKETS if bucket <= rows)
    kv_bytes = min(left - rows * costs.row, max(free_bytes * limits.kv_share, PAGES_PER_ROW * costs.page))
    return Sizes(rows, min(limits.num_pages, int(kv_bytes / costs.page)), frames, tokens, reference_s)


def least_bytes(costs: Costs, limits: Limits) -> float:
    """The least free memory, beside the weights, with which `fit` finds sizes on one device."""
    fewest, most = 0, 64 * int(GIB)
    while most - fewest > MIB:
        middle = (fewest + most) // 2
        fewest, most = (fewest, middle) if fit(middle, costs, limits) else (middle, most)
    return most


def too_small(card: str, free_bytes: float, needed_bytes: float) -> EngineConfigError:
    """The error for a device that cannot hold one row: what it is, what is needed, what is free, and what helps."""
    return EngineConfigError(
        f"{card} has {free_bytes / GIB:.1f} GiB of free memory, and at least {needed_bytes / GIB:.1f} GiB are needed: "
        "use a 0.6B model, a smaller --profile or --max-num-seqs, or end other programs on this GPU."
    )


def _spare(free_bytes: float) -> float:
    return free_bytes - max(RESERVE_BYTES, RESERVE_SHARE * free_bytes)


def _part(share_bytes: float, cost: float, least: int, most: int) -> int:
    return min(most, max(least, int(share_bytes / cost)))
