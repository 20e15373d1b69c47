"""Prompts of a burst, packed: one gather for all texts, one for all codes, one sum for all reference frames."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from tts_batch.engine.kernels.frame import embed_frame
from tts_batch.engine.runner import EngineRow
from tts_batch.engine.staging import stage
from tts_batch.engine.v2.packed import PackedTalker
from tts_batch.model.prompt import REF_FRAME, X_VECTOR


def embed_prompts(weights: PackedTalker, rows: Sequence[EngineRow]) -> Tensor:
    """The prefill vectors [sum of prompt lengths, H] of some rows, one row after another."""
    device = weights.text_table.device
    text_ids = np.fromiter(chain.from_iterable(row.prompt.text_ids for row in rows), dtype=np.int64)
    codec_ids = np.fromiter(chain.from_iterable(row.prompt.codec_ids for row in rows), dtype=np.int64)
    places = (np.flatnonzero(codec_ids == kind) for kind in (X_VECTOR, REF_FRAME))
    text_ids, codec_ids, x_vector_at, frame_at = stage(
        device, *(torch.from_numpy(ids) for ids in (text_ids, codec_ids, *places))
    )
    x = _gather(weights.text_table, text_ids)
    codec = _gather(weights.frame_tables, codec_ids)
    if len(x_vector_at):
        vectors = [row.x_vector for row in rows if row.x_vector is not None and X_VECTOR in row.prompt.codec_ids]
        codec[x_vector_at] = torch.stack(vectors).to(codec)
    if len(frame_at):
        voices = [row.ref_codes for row in rows if row.ref_codes is not None and REF_FRAME in row.prompt.codec_ids]
        frames = torch.cat(voices).to(torch.int32)
        nothing = torch.zeros(len(frames), dtype=torch.int32, device=device)
        no_text = torch.zeros_like(weights.text_table[:1])
        codec[frame_at] = embed_frame(frames, weights.frame_tables, weights.frame_offsets, nothing, no_text)
    return x + codec


def _gather(table: Tensor, ids: Tensor) -> Tensor:
    """Rows of a table, zeros where the id is not one."""
    return table[ids.clamp(min=0)].masked_fill_((ids < 0)[:, None], 0)
