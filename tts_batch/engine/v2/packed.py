"""The network's weights as runner v2 reads them: projections side by side, tables folded. Values stay the network's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tts_batch.engine.kernels.activation import silu_mul
from tts_batch.engine.kernels.backend import uses_triton
from tts_batch.engine.kernels.norm import add_rms_norm_, rms_norm
from tts_batch.engine.kernels.small_batch import (
    MOST_ROWS,
    has_tiles,
    linear_add_,
    make_arrivals,
    norm_gate_up_silu,
    norm_linear,
)
from tts_batch.model.layers import DecoderStack
from tts_batch.model.talker import Talker

TEXT_ROWS = 8_192  # of the text embedding, projected at a time

AttendPacked = Callable[[int, Tensor], Tensor]
"""attend(layer_idx, qkv [N, (Hq + 2 Hkv) D]) -> [N, Hq D]."""


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """One decoder layer: four products instead of seven."""

    qkv: Tensor  # [(Hq + 2 Hkv) D, H]
    q_norm: Tensor
    k_norm: Tensor
    out: Tensor  # [H, Hq D]
    gate_up: Tensor  # [2 I, H]
    down: Tensor  # [H, I]
    input_norm: Tensor
    post_attention_norm: Tensor


class PackedStack:
    """A decoder stack over the residual stream [N, H], which it overwrites.

    Few rows go through the kernels of small_batch.py, where these are allowed and know the layers' shapes.
    """

    def __init__(self, stack: DecoderStack, max_positions: int, small_batch_kernels: bool = True) -> None:
        self.config = stack.config
        self.eps = stack.config.rms_norm_eps
        self.norm = stack.norm.weight.data
        self.layers = [_pack(layer) for layer in stack.layers]
        cos, sin = stack.rotary(torch.arange(max_positions, device=self.norm.device))
        half = stack.config.head_dim // 2
        self.cos, self.sin = cos[:, :half].contiguous(), sin[:, :half].contiguous()
        first = self.layers[0]
        is_known = has_tiles(first.qkv, first.out, first.gate_up, first.down)
        self.small_batch = MOST_ROWS if small_batch_kernels and is_known else 0  # rows at most
        self.arrivals = make_arrivals(self.norm.device)

    def forward(self, x: Tensor, attend: AttendPacked) -> Tensor:
        """Map x [N, H] to hidden states [N, H] after the final norm. x is the residual stream and is overwritten."""
        if x.shape[0] <= self.small_batch and uses_triton(x):
            return self._forward_few(x, attend)
        normed = rms_norm(x, self.layers[0].input_norm, self.eps)
        for i, layer in enumerate(self.layers):
            attended = attend(i, F.linear(normed, layer.qkv))
            normed = add_rms_norm_(x, F.linear(attended, layer.out), layer.post_attention_norm, self.eps)
            mlp = F.linear(silu_mul(F.linear(normed, layer.gate_up)), layer.down)
            following = self.layers[i + 1].input_norm if i + 1 < len(self.layers) else self.norm
            normed = add_rms_norm_(x, mlp, following, self.eps)
        return normed

    def _forward_few(self, x: Tensor, attend: AttendPacked) -> Tensor:
        qkv = F.linear(rms_norm(x, self.layers[0].input_norm, self.eps), self.layers[0].qkv)
        for i, layer in enumerate(self.layers):
            sums = linear_add_(attend(i, qkv), layer.out, x, self.arrivals)
            mlp = norm_gate_up_silu(x, sums, layer.post_attention_norm, layer.gate_up, self.eps, self.arrivals)
            sums = linear_add_(mlp, layer.down, x, self.arrivals)
            if i + 1 < len(self.layers):
                following = self.layers[i + 1]
                qkv = norm_linear(x, sums, following.input_norm, following.qkv, self.eps, self.arrivals)
        return rms_norm(x, self.norm, self.eps)


@dataclass(frozen=True, slots=True)
class PackedTalker:
    """All weights that a frame reads."""

    talker: PackedStack
    predictor: PackedStack
    codec_head: Tensor  # [vocab, H]
    lm_heads: Tensor  # [15, 2048, hidden of the predictor]
    projection: tuple[Tensor, Tensor | None] | None  # weight and bias; None: the predictor reads talker vectors
    code0_inputs: Tensor  # [vocab, hidden of the predictor]: the projected codec_embedding
    code_inputs: Tensor  # [14, 2048, hidden of the predictor]: the projected tables of codebooks 1..14
    frame_tables: Tensor  # [vocab + 15 * 2048, H]
    frame_offsets: Tensor  # int32 [16]
    text_table: Tensor  # [text vocab, H]: the projected text embedding

    @classmethod
    @torch.no_grad()
    def pack(cls, talker: Talker, max_positions: int, small_batch_kernels: bool = True) -> PackedTalker:
        """Pack the weights of a talker, one layer at a time.

        What is only moved is not held twice: the talker's own weights become views of the packed tensors, with the
        values that they had. The text embedding, which is projected, stays beside its table.
        """
        predictor = talker.code_predictor
        code0 = talker.model.codec_embedding.weight.data
        others = [table.weight.data for table in predictor.model.codec_embedding]
        sizes = [code0.shape[0], *(table.shape[0] for table in others)]
        offsets = [sum(sizes[:g]) for g in range(len(sizes))]
        projection = predictor.small_to_mtp_projection
        is_identity = isinstance(projection, torch.nn.Identity)
        text_ids = torch.arange(talker.model.text_embedding.num_embeddings, device=code0.device)
        text_table = torch.empty(len(text_ids), code0.shape[1], dtype=code0.dtype, device=code0.device)
        for start in range(0, len(text_ids), TEXT_ROWS):
            text_table[start : start + TEXT_ROWS] = talker.project_text(text_ids[start : start + TEXT_ROWS])
        tables = [talker.model.codec_embedding, *predictor.model.codec_embedding]
        return cls(
            talker=PackedStack(talker.stack, max_positions, small_batch_kernels),
            predictor=PackedStack(predictor.stack, len(sizes) + 1, small_batch_kernels),
            codec_head=talker.codec_head.weight.data,
            lm_heads=_side_by_side(predictor.lm_head).unflatten(0, (len(predictor.lm_head), -1)),
            projection=None if is_identity else (projection.weight.data, projection.bias.data),
            code0_inputs=predictor.project(code0),
            code_inputs=torch.stack([predictor.project(table) for table in others[:-1]]),
            frame_tables=_side_by_side(tables),
            frame_offsets=torch.tensor(offsets, dtype=torch.int32, device=code0.device),
            text_table=text_table,
        )


def _side_by_side(modules: Iterable[torch.nn.Module]) -> Tensor:
    """The weights [rows, columns] of some modules below one another, of which each module's own becomes a view."""
    (packed,) = _in_one_buffer([list(modules)])
    return packed


def _in_one_buffer(groups: Sequence[Sequence[torch.nn.Module]]) -> list[Tensor]:
    """For each group of modules their weights [rows, columns] below one another, of which each becomes a view.

    All lie in one allocation: what the weights held before is freed whole, and leaves no gaps that nothing else fits.
    """
    weights: list[list[Tensor]] = [[module.weight.data for module in group] for group in groups]
    sizes = [sum(weight.numel() for weight in group) for group in weights]
    buffer = torch.empty(sum(sizes), dtype=weights[0][0].dtype, device=weights[0][0].device)
    packed = [part.view(-1, group[0].shape[1]) for part, group in zip(buffer.split(sizes), weights, strict=True)]
    for matrix, modules in zip(packed, groups, strict=True):
        rows = [module.weight.shape[0] for module in modules]
        for module, part in zip(modules, matrix.split(rows), strict=True):
            part.copy_(module.weight.data)
            module.weight = torch.nn.Parameter(part, requires_grad=False)
    return packed


def _pack(layer: torch.nn.Module) -> PackedLayer:
    attention, mlp = layer.self_attn, layer.mlp
    qkv, out, gate_up, down = _in_one_buffer(
        [
            [attention.q_proj, attention.k_proj, attention.v_proj],
            [attention.o_proj],
            [mlp.gate_proj, mlp.up_proj],
            [mlp.down_proj],
        ]
    )
    return PackedLayer(
        qkv=qkv,
        q_norm=attention.q_norm.weight.data,
        k_norm=attention.k_norm.weight.data,
        out=out,
        gate_up=gate_up,
        down=down,
        input_norm=layer.input_layernorm.weight.data,
        post_attention_norm=layer.post_attention_layernorm.weight.data,
    )
