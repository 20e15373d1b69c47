"""Dense keys and values of a static batch: every row has positions 0..L-1 of its own, padded on the right."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # what a layer asks of its cache, see model/layers.py

GROWTH = 256  # positions added at a time


class DenseKVCache:
    """Keys and values [layers, rows, kv_heads, capacity, head_dim], grown as the rows grow."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_rows: int,
        num_kv_heads: int,
        head_dim: int,
        capacity: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        # Zeros, not empty: a masked position has weight 0, and 0 * NaN is NaN.
        shape = (num_layers, num_rows, num_kv_heads, capacity, head_dim)
        self._keys = torch.zeros(shape, device=device, dtype=dtype)
        self._values = torch.zeros(shape, device=device, dtype=dtype)

    @property
    def capacity(self) -> int:
        return self._keys.shape[3]

    def select(self, rows: Tensor) -> None:
        """Keep only these rows: int64 [kept]."""
        self._keys, self._values = self._keys[:, rows], self._values[:, rows]

    def prefill(self, lengths: Sequence[int]) -> Attend:
        """Attention of whole prompts, packed row after row, each causal over its own `lengths[row]` tokens."""
        longest = max(lengths)
        self._reserve(longest)
        device = self._keys.device
        own = torch.arange(longest, device=device) < torch.tensor(lengths, device=device)[:, None]
        rows, positions = own.nonzero(as_tuple=True)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._keys[layer, rows, :, positions] = k
            self._values[layer, rows, :, positions] = v
            # Padding follows a row's tokens, so the causal mask hides it.
            padded = q.new_zeros(len(lengths), q.shape[1], longest, q.shape[2])
            padded[rows, :, positions] = q
            out = F.scaled_dot_product_attention(
                padded,
                self._keys[layer, :, :, :longest],
                self._values[layer, :, :, :longest],
                is_causal=True,
                enable_gqa=True,
            )
            return out[rows, :, positions]

        return attend

    def step(self, positions: Tensor, longest: int) -> Attend:
        """Attention of one new token a row, at int64 `positions` [rows], all of them below `longest`."""
        self._reserve(longest)
        rows = torch.arange(len(positions), device=positions.device)
        mask = torch.arange(longest, device=positions.device) <= positions[:, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._keys[layer, rows, :, positions] = k
            self._values[layer, rows, :, positions] = v
            out = F.scaled_dot_product_attention(
                q[:, :, None],
                self._keys[layer, :, :, :longest],
                self._values[layer, :, :, :longest],
                attn_mask=mask[:, None, None],
                enable_gqa=True,
            )
            return out[:, :, 0]

        return attend

    def _reserve(self, length: int) -> None:
        missing = length - self.capacity
        if missing > 0:
            padding = (0, 0, 0, -(-missing // GROWTH) * GROWTH)
            self._keys, self._values = F.pad(self._keys, padding), F.pad(self._values, padding)
