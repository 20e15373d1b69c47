"""One frame of every active row, without a host decision inside: captured as a CUDA graph, run eagerly on a CPU.

A frame: first code from the last hidden state, fifteen predictor passes, the codes appended, one talker step.
What must not enter: Python that looks at a request, a value read back from the device, a shape that depends on data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_batch.engine.kernels.attention import decode_attention, prefill_attention
from tts_batch.engine.kernels.frame import append_frame, embed_frame
from tts_batch.engine.kernels.predictor_attention import predictor_attention
from tts_batch.engine.kernels.rotary_cache import Rotation, rotate_and_cache
from tts_batch.engine.kernels.sampling import sample_code, sample_code0
from tts_batch.engine.loops import LoopLimits
from tts_batch.engine.request import NUM_CODEBOOKS
from tts_batch.engine.v2.packed import PackedStack, PackedTalker
from tts_batch.engine.v2.request_state import RequestState

PREDICTOR_POSITIONS = NUM_CODEBOOKS  # a frame's own little sequence: the talker's state, then codes 0..14


@dataclass(frozen=True, slots=True)
class PrefillTokens:
    """Inputs of a prefill pass by token, row after row. Row boundaries are in PrefillRows."""

    x: Tensor  # [N, H]
    positions: Tensor  # int32 [N]
    slot_mapping: Tensor  # int32 [N]


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """Inputs of a prefill pass by row."""

    block_table: Tensor  # int32 [rows, max pages]
    cu_seqlens: Tensor  # int32 [rows + 1], where each row's tokens begin
    starts: Tensor  # int32 [rows], tokens of the row that earlier passes have stored
    max_len: int  # most tokens of one row in this pass


class FrameLoop:
    """Steps over a RequestState and its KV pages [layers, 2, num_pages, Hkv, page_size, D]."""

    def __init__(
        self, weights: PackedTalker, state: RequestState, kv_pages: Tensor, eos_id: int, loop_limits: LoopLimits
    ) -> None:
        self.weights = weights
        self.state = state
        self.kv_pages = kv_pages
        self.eos_id = eos_id
        self.loop_limits = loop_limits

    def run_frame(self, slots: Tensor) -> None:
        """Advance the rows in slots int32 [N] by one frame; ended rows are unchanged."""
        state, weights = self.state, self.weights
        rows = slots.long()
        codes = self._choose_codes(slots, state.hidden[rows])
        context_lens, text_ids = append_frame(state, slots, codes, self.loop_limits)
        x = embed_frame(codes, weights.frame_tables, weights.frame_offsets, text_ids, weights.text_table)
        block_table = state.block_table[rows]

        def attend(layer_idx: int, qkv: Tensor) -> Tensor:
            rotation = _rotation(weights.talker, layer_idx)
            return decode_attention(qkv, rotation, *self.kv_pages[layer_idx], block_table, context_lens)

        state.hidden[rows] = weights.talker.forward(x, attend)

    def run_prefill(self, tokens: PrefillTokens, rows: PrefillRows) -> Tensor:
        """Run packed prompt chunks through the talker (see `prefill_attention`): hidden states [N, H]."""

        def attend(layer_idx: int, qkv: Tensor) -> Tensor:
            rotation = _rotation(self.weights.talker, layer_idx)
            k_pages, v_pages = self.kv_pages[layer_idx]
            q = rotate_and_cache(qkv, rotation, tokens.positions, tokens.slot_mapping, k_pages, v_pages)
            return prefill_attention(
                q, k_pages, v_pages, rows.block_table, rows.cu_seqlens, rows.starts, rows.max_len
            ).flatten(1)

        return self.weights.talker.forward(tokens.x, attend)

    def _choose_codes(self, slots: Tensor, hidden: Tensor) -> Tensor:
        state, weights, predictor = self.state, self.weights, self.weights.predictor
        num_rows = slots.shape[0]
        codes = torch.empty(num_rows, NUM_CODEBOOKS, dtype=torch.int32, device=hidden.device)
        config = predictor.config
        kv = torch.empty(
            len(predictor.layers), 2, num_rows, config.num_key_value_heads, PREDICTOR_POSITIONS, config.head_dim,
            dtype=hidden.dtype, device=hidden.device,
        )  # fmt: skip

        # Positions 0 and 1 together: the talker's state and code 0, two tokens a row.
        x = torch.empty(num_rows, 2, config.hidden_size, dtype=hidden.dtype, device=hidden.device)
        x[:, 0] = hidden if weights.projection is None else F.linear(hidden, *weights.projection)
        logits = F.linear(hidden, weights.codec_head)
        sample_code0(state, slots, logits, self.eos_id, codes, weights.code0_inputs, x[:, 1])
        hidden = self._predict(x.flatten(0, 1), kv, num_stored=0)[1::2]
        for codebook in range(1, NUM_CODEBOOKS):
            logits = F.linear(hidden, weights.lm_heads[codebook - 1])
            if codebook == NUM_CODEBOOKS - 1:
                sample_code(state, slots, logits, codebook, codes, None, None)
                break
            x = torch.empty(num_rows, config.hidden_size, dtype=hidden.dtype, device=hidden.device)
            sample_code(state, slots, logits, codebook, codes, weights.code_inputs[codebook - 1], x)
            hidden = self._predict(x, kv, num_stored=codebook + 1)
        return codes

    def _predict(self, x: Tensor, kv: Tensor, num_stored: int) -> Tensor:
        predictor = self.weights.predictor

        def attend(layer_idx: int, qkv: Tensor) -> Tensor:
            return predictor_attention(qkv, _rotation(predictor, layer_idx), *kv[layer_idx], num_stored)

        return predictor.forward(x, attend)


def _rotation(stack: PackedStack, layer_idx: int) -> Rotation:
    layer = stack.layers[layer_idx]
    return Rotation(layer.q_norm, layer.k_norm, stack.eps, stack.cos, stack.sin)
