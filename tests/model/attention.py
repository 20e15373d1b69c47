"""The plainest attention, for tests that run a stack over one whole sequence."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def attend_causal(layer_idx: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend over N tokens as one whole sequence, without a cache."""
    q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
